//! Opens a token file of any format.

use std::path::Path;

use crate::dtype::Dtype;
use crate::error::{Error, Result};
use crate::file_kinds::SAMPLE_BYTES;
use crate::mapped_file::{MappedFile, Opened};

use super::layout::{Format, Opener, TokenFile, TokenLayout, is_not_found, read_prefix, whole_tokens};
use super::{datatrove, llmc, megatron, npy, refused, width};

/// The type that nanoGPT and similar programs write.
const RAW_DTYPE: Dtype = Dtype::U16;

/// Opens a token file and determines its layout, from a few bytes and the sizes.
pub fn open(path: &Path, dtype: Option<Dtype>, format: Option<Format>, how: Opener<'_>) -> Result<TokenFile> {
    let extension = path.extension().and_then(|extension| extension.to_str());
    match (format, extension) {
        (Some(Format::Megatron), _) => return megatron::open(path, None, dtype, how),
        (None, Some("bin")) => {
            if let Some(index) = index_next_to(path, how)? {
                return megatron::open(path, Some(index), dtype, how);
            }
        }
        _ => {}
    }
    let file = match how.open(path) {
        // The path may be the common stem of a Megatron pair.
        Err(error) if format.is_none() && is_not_found(&error) => match index_next_to(path, how)? {
            Some(index) => return megatron::open(path, Some(index), dtype, how),
            None => return Err(neither(path, error)),
        },
        opened => opened?,
    };
    let opened = file.opened()?;
    // One reader for all positions of the file, because each reader costs four system calls besides its reads.
    let reader = opened.exact_reader();
    let prefix = reader.read(0, opened.size().min(SAMPLE_BYTES as u64))?;
    let is_npy = prefix.starts_with(npy::MAGIC);
    let layout = match format {
        Some(Format::Npy) if !is_npy => {
            let detail = "format=\"npy\" was asked for, but the file does not begin with \\x93NUMPY";
            return Err(Error::format(path, 0, detail));
        }
        Some(Format::Raw) => raw(&opened, dtype)?,
        Some(Format::Llmc) => llmc::layout(&opened, dtype)?,
        Some(Format::Datatrove) => return datatrove::open(file, dtype, how),
        _ if is_npy => npy::layout(&opened, dtype)?,
        _ if prefix.starts_with(megatron::MAGIC) && extension == Some("idx") => {
            return megatron::open(path, Some(file), dtype, how);
        }
        _ if llmc::claims(&prefix) => llmc::layout(&opened, dtype)?,
        _ => {
            refused::check(&opened, &prefix, dtype)?;
            if megatron::is_name_of_pair(path) {
                return Err(refused::missing_index(path, &megatron::paths(path).0));
            }
            if extension == Some("ds") {
                return datatrove::open(file, dtype, how);
            }
            let layout = raw(&opened, dtype)?;
            width::check(&reader, &prefix, layout.dtype)?;
            layout
        }
    };
    reader.finish()?;
    Ok(TokenFile { file, layout, index: None })
}

/// Opens the Megatron index next to a file, if there is one. Rejects the file if its `.idx` is anything else: the file
/// may belong to a pair with a damaged index, or have another format.
fn index_next_to(path: &Path, how: Opener<'_>) -> Result<Option<MappedFile>> {
    let (index, _) = megatron::paths(path);
    let Some(file) = how.open_if_there(&index)? else { return Ok(None) };
    let opened = file.opened()?;
    if read_prefix(&opened, megatron::MAGIC.len() as u64)?.starts_with(megatron::MAGIC) {
        return Ok(Some(file));
    }
    Err(refused::bad_index(path, &opened)?)
}

/// Returns the error for a missing file, whose path may be the stem of a Megatron pair.
fn neither(path: &Path, error: Error) -> Error {
    let (index, data) = megatron::paths(path);
    match error {
        Error::System { operation, path, errno, .. } if path.extension().is_none() => {
            let advice =
                format!("there is no Megatron pair {} and {} either", index.display(), data.display());
            Error::System { operation, path, errno, advice }
        }
        error => error,
    }
}

fn raw(opened: &Opened, dtype: Option<Dtype>) -> Result<TokenLayout> {
    let dtype = dtype.unwrap_or(RAW_DTYPE);
    let tokens = whole_tokens(opened.path(), opened.size(), dtype)?;
    Ok(TokenLayout { format: Format::Raw, dtype, data_offset_bytes: 0, tokens })
}

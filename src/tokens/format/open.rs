//! Opening a token file of any format.

use std::path::Path;

use crate::dtype::Dtype;
use crate::error::{Error, Result};
use crate::mapped_file::{MappedFile, Opened};

use super::documents::DocumentTable;
use super::layout::{Format, Opener, TokenLayout, is_not_found, item_bytes, read_prefix, token_dtype_name};
use super::{datatrove, llmc, megatron, npy, refused};

/// The type that nanoGPT and its kin write.
const RAW_DTYPE: Dtype = Dtype::U16;

/// A token file, open and understood, with the file that records its documents.
#[derive(Debug)]
pub struct TokenFile {
    pub file: MappedFile,
    pub layout: TokenLayout,
    pub documents: Option<(DocumentTable, MappedFile)>,
}

/// Opens a token file and finds its layout, from a few bytes and the sizes.
pub fn open(path: &Path, dtype: Option<Dtype>, format: Option<Format>, how: Opener<'_>) -> Result<TokenFile> {
    let extension = path.extension().and_then(|extension| extension.to_str());
    match (format, extension) {
        (Some(Format::Megatron), _) => return pair(path, None, dtype, how),
        (None, Some("bin")) => {
            // Any file may be called .bin and have an .idx next to it; the magic number of the .idx decides.
            if let Some(index) = index_next_to(path, how)? {
                return pair(path, Some(index), dtype, how);
            }
        }
        _ => {}
    }
    let file = match how.open(path) {
        // The path may be the common stem of a Megatron pair.
        Err(error) if format.is_none() && is_not_found(&error) => match index_next_to(path, how)? {
            Some(index) => return pair(path, Some(index), dtype, how),
            None => return Err(error),
        },
        opened => opened?,
    };
    let opened = file.opened()?;
    let prefix = read_prefix(&opened, refused::SNIFF_BYTES)?;
    let is_npy = prefix.starts_with(npy::MAGIC);
    let layout = match format {
        Some(Format::Npy) if !is_npy => {
            let detail = "format=\"npy\" was asked for, but the file does not begin with \\x93NUMPY";
            return Err(Error::format(path, 0, detail));
        }
        Some(Format::Raw) => raw(&file, &opened, dtype)?,
        Some(Format::Llmc) => llmc::layout(&file, &opened, dtype)?,
        Some(Format::Datatrove) => return with_ends(file, &opened, dtype, how),
        _ if is_npy => npy::layout(&file, &opened, dtype)?,
        _ if prefix.starts_with(megatron::MAGIC) && extension == Some("idx") => {
            drop(opened);
            return pair(path, Some(file), dtype, how);
        }
        _ if llmc::claims(&prefix) => llmc::layout(&file, &opened, dtype)?,
        _ => {
            refused::check(path, &prefix)?;
            if extension == Some("ds") {
                return with_ends(file, &opened, dtype, how);
            }
            raw(&file, &opened, dtype)?
        }
    };
    drop(opened);
    Ok(TokenFile { file, layout, documents: None })
}

/// Opens a Megatron pair, whose index may already be open.
fn pair(path: &Path, index: Option<MappedFile>, dtype: Option<Dtype>, how: Opener<'_>) -> Result<TokenFile> {
    let pair = megatron::open(path, index, dtype, how)?;
    let documents = Some((DocumentTable::Megatron(pair.tables), pair.index));
    Ok(TokenFile { file: pair.data, layout: pair.layout, documents })
}

/// Opens a datatrove file and its side files.
fn with_ends(file: MappedFile, opened: &Opened, dtype: Option<Dtype>, how: Opener<'_>) -> Result<TokenFile> {
    let (layout, ends) = datatrove::layout(&file, opened, dtype, how)?;
    let documents = ends.map(|(ends, index)| (DocumentTable::Ends(ends), index));
    Ok(TokenFile { file, layout, documents })
}

/// Opens the Megatron index next to a file, if there is one. Rejects the file if the index is of another kind,
/// because its tokens then have another format, too.
fn index_next_to(path: &Path, how: Opener<'_>) -> Result<Option<MappedFile>> {
    let (index, _) = megatron::paths(path);
    let Some(file) = how.open_if_there(&index)? else { return Ok(None) };
    let prefix = read_prefix(&*file.opened()?, refused::SNIFF_BYTES)?;
    if prefix.starts_with(megatron::MAGIC) {
        return Ok(Some(file));
    }
    refused::check_neighbour(path, &index, &prefix)?;
    Ok(None)
}

fn raw(file: &MappedFile, opened: &Opened, dtype: Option<Dtype>) -> Result<TokenLayout> {
    let dtype = dtype.unwrap_or(RAW_DTYPE);
    let item_bytes = item_bytes(dtype);
    let size = opened.size();
    if !size.is_multiple_of(item_bytes) {
        let detail = format!(
            "the file has {size} bytes, which is not a whole number of {} tokens of {item_bytes} bytes; \
             pass the dtype that it was written with, or write it again",
            token_dtype_name(dtype)
        );
        return Err(Error::format(file.path(), None, detail));
    }
    Ok(TokenLayout { format: Format::Raw, dtype, data_offset_bytes: 0, tokens: size / item_bytes })
}

//! Formats of token files: where in the file the tokens lie, and of which type they are.
//!
//! A format is told by its magic number, then by the files next to it, else the file is a raw stream.
//! Files that are known to be something else are refused by name: read as raw tokens they would give
//! plausible nonsense.

mod datatrove;
mod llmc;
pub mod megatron;
mod npy;
mod refused;

use std::path::Path;

use crate::dtype::Dtype;
use crate::error::{Error, Result};
use crate::mapped_file::{MappedFile, Opened, RequestedMode};
use crate::os::errno::Code;
use crate::words::words;

use super::documents::DocumentTable;

words! {
    /// A format of token files.
    pub enum Format as "format" {
        /// Tokens and nothing else: nanoGPT's `.bin`, and the `.npy` without a header of OLMo and dolma.
        Raw = "raw",
        /// NumPy's `.npy`, one-dimensional.
        Npy = "npy",
        /// llm.c and modded-nanogpt.
        Llmc = "llmc",
        /// Megatron's `.idx` and `.bin`.
        Megatron = "megatron",
        /// datatrove's `.ds`.
        Datatrove = "datatrove",
    }
}

/// Where the tokens of a file are.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Layout {
    pub format: Format,
    pub dtype: Dtype,
    pub data_offset_bytes: u64,
    pub tokens: u64,
}

/// A token file, open and understood, with the file that records its documents.
#[derive(Debug)]
pub struct Found {
    pub file: MappedFile,
    pub layout: Layout,
    pub documents: Option<(DocumentTable, MappedFile)>,
}

/// The types that tokens have, by NumPy's names.
pub const TOKEN_DTYPES: &[(&str, Dtype)] = &[
    ("uint8", Dtype::U8),
    ("int8", Dtype::I8),
    ("uint16", Dtype::U16),
    ("int16", Dtype::I16),
    ("uint32", Dtype::U32),
    ("int32", Dtype::I32),
    ("uint64", Dtype::U64),
    ("int64", Dtype::I64),
];

/// What nanoGPT and its kin write.
const RAW_DTYPE: Dtype = Dtype::U16;

pub fn token_dtype_name(dtype: Dtype) -> &'static str {
    TOKEN_DTYPES.iter().find(|(_, known)| *known == dtype).map_or(dtype.name(), |(name, _)| *name)
}

pub fn token_dtype_from_name(name: &str) -> Result<Dtype> {
    TOKEN_DTYPES.iter().find(|(known, _)| *known == name).map(|(_, dtype)| *dtype).ok_or_else(|| {
        let names: Vec<_> = TOKEN_DTYPES.iter().map(|(name, _)| *name).collect();
        Error::argument(format!("tokens are of one of the types {}, not {name}", names.join(", ")))
    })
}

/// Opens a token file and finds out its layout, from a few bytes and the sizes.
pub fn open(path: &Path, dtype: Option<Dtype>, format: Option<Format>, mode: RequestedMode) -> Result<Found> {
    let extension = path.extension().and_then(|extension| extension.to_str());
    match (format, extension) {
        (Some(Format::Megatron), _) => return megatron::open(path, None, None, dtype, mode),
        (None, Some("bin")) => {
            // Any file may be called .bin and have an .idx next to it: its magic number decides.
            if let Some(index) = index_next_to(path, mode)? {
                return megatron::open(path, Some(index), None, dtype, mode);
            }
        }
        _ => {}
    }
    let file = match MappedFile::open(path, mode) {
        // The common stem of a Megatron pair.
        Err(error) if format.is_none() && not_found(&error) => match index_next_to(path, mode)? {
            Some(index) => return megatron::open(path, Some(index), None, dtype, mode),
            None => return Err(error),
        },
        opened => opened?,
    };
    let opened = file.opened()?;
    let prefix = read_prefix(&opened, refused::SNIFF_BYTES)?;
    let is_npy = prefix.starts_with(npy::MAGIC);
    let layout = match format {
        Some(Format::Npy) if !is_npy => {
            let detail = "format=\"npy\" was asked for, but the file does not begin with \\x93NUMPY".into();
            return Err(Error::Format { path: path.into(), offset: Some(0), detail });
        }
        Some(Format::Raw) => raw(&file, &opened, dtype)?,
        Some(Format::Llmc) => llmc::layout(&file, &opened, dtype)?,
        Some(Format::Datatrove) => return datatrove::open(file, &opened, dtype, mode),
        _ if is_npy => npy::layout(&file, &opened, dtype)?,
        _ if prefix.starts_with(megatron::MAGIC) && extension == Some("idx") => {
            drop(opened);
            return megatron::open(path, Some(file), None, dtype, mode);
        }
        _ if llmc::claims(&prefix) => llmc::layout(&file, &opened, dtype)?,
        _ => {
            refused::check(path, &prefix)?;
            if extension == Some("ds") {
                return datatrove::open(file, &opened, dtype, mode);
            }
            raw(&file, &opened, dtype)?
        }
    };
    drop(opened);
    Ok(Found { file, layout, documents: None })
}

/// The Megatron index next to a file, if there is one.
fn index_next_to(path: &Path, mode: RequestedMode) -> Result<Option<MappedFile>> {
    let (index, _) = megatron::paths(path);
    match MappedFile::open(&index, mode) {
        Ok(file) => {
            let is_index = read_prefix(&*file.opened()?, 9)?.starts_with(megatron::MAGIC);
            Ok(is_index.then_some(file))
        }
        Err(error) if not_found(&error) => Ok(None),
        // One that is there and cannot be read may say that these are other tokens than they seem.
        Err(error) => Err(error),
    }
}

fn not_found(error: &Error) -> bool {
    // A directory of that name is no index either.
    matches!(error, Error::System { errno, .. } if crate::mapped_file::is_gone(*errno) || *errno == Code::ISDIR.raw_os_error())
}

/// A type that was asked for must be the one that the header says.
fn agree_dtype(file: &MappedFile, offset: u64, found: Dtype, asked: Option<Dtype>) -> Result<()> {
    let Some(asked) = asked.filter(|&asked| asked != found) else { return Ok(()) };
    let (found, asked) = (token_dtype_name(found), token_dtype_name(asked));
    let detail = format!("the file holds {found} tokens, but dtype={asked} was asked for");
    Err(Error::Format { path: file.path().into(), offset: Some(offset), detail })
}

fn raw(file: &MappedFile, opened: &Opened, dtype: Option<Dtype>) -> Result<Layout> {
    let dtype = dtype.unwrap_or(RAW_DTYPE);
    let item_bytes = item_bytes(dtype);
    let size = opened.size();
    if !size.is_multiple_of(item_bytes) {
        let detail = format!(
            "the file has {size} bytes, which is not a whole number of {} tokens of {item_bytes} bytes; \
             pass the dtype that it was written with, or write it again",
            token_dtype_name(dtype)
        );
        return Err(Error::Format { path: file.path().into(), offset: None, detail });
    }
    Ok(Layout { format: Format::Raw, dtype, data_offset_bytes: 0, tokens: size / item_bytes })
}

/// Bytes of one token. Every token type fills whole bytes.
pub fn item_bytes(dtype: Dtype) -> u64 {
    dtype.bits() / 8
}

/// Up to `len` bytes from the start of the file.
fn read_prefix(opened: &Opened, len: u64) -> Result<Vec<u8>> {
    opened.peek(0, len.min(opened.size()))
}

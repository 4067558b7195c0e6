//! The layout of a token file: its format, and the type, offset and number of its tokens.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use crate::dtype::Dtype;
use crate::error::{Error, Result};
use crate::mapped_file::{MappedFile, NOT_FOUND, Opened, RequestedMode, identity_at, is_gone};
use crate::os::errno::Code;
use crate::words::words;

use super::checked_index::CheckedIndex;
use super::documents::DocumentTable;

words! {
    /// A format of token files.
    pub enum Format as "format" {
        /// Only tokens: nanoGPT's `.bin`, and the `.npy` without a header of OLMo and dolma.
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

/// The format of a file, and the type, position and number of its tokens.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TokenLayout {
    pub format: Format,
    pub dtype: Dtype,
    pub data_offset_bytes: u64,
    pub tokens: u64,
}

/// An open token file with its layout.
#[derive(Debug)]
pub struct TokenFile {
    pub file: MappedFile,
    pub layout: TokenLayout,
    pub index: Option<TokenIndex>,
}

/// The file that records the documents of a token file.
#[derive(Debug)]
pub struct TokenIndex {
    pub file: MappedFile,
    pub documents: Box<dyn DocumentTable>,
    pub checked: Arc<CheckedIndex>,
}

/// The types of tokens, with NumPy's names and the names in `.npy` headers.
pub const TOKEN_DTYPES: &[(&str, &str, Dtype)] = &[
    ("uint8", "|u1", Dtype::U8),
    ("int8", "|i1", Dtype::I8),
    ("uint16", "<u2", Dtype::U16),
    ("int16", "<i2", Dtype::I16),
    ("uint32", "<u4", Dtype::U32),
    ("int32", "<i4", Dtype::I32),
    ("uint64", "<u8", Dtype::U64),
    ("int64", "<i8", Dtype::I64),
];

pub fn token_dtype_name(dtype: Dtype) -> &'static str {
    TOKEN_DTYPES.iter().find(|known| known.2 == dtype).map_or(dtype.name(), |known| known.0)
}

pub fn token_dtype_from_name(name: &str) -> Result<Dtype> {
    TOKEN_DTYPES.iter().find(|known| known.0 == name).map(|known| known.2).ok_or_else(|| {
        let names: Vec<_> = TOKEN_DTYPES.iter().map(|known| known.0).collect();
        Error::argument(format!("tokens are of one of the types {}, not {name}", names.join(", ")))
    })
}

/// A check before each file is opened. An error prevents the opening.
pub type Gate<'a> = dyn Fn(&Path) -> Result<()> + Sync + 'a;

/// How to open the files of a corpus: the mode, and the gate before each open.
#[derive(Clone, Copy)]
pub struct Opener<'a> {
    pub mode: RequestedMode,
    pub gate: &'a Gate<'a>,
}

impl std::fmt::Debug for Opener<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Opener").field("mode", &self.mode).finish_non_exhaustive()
    }
}

impl From<RequestedMode> for Opener<'_> {
    /// Opens every file in this mode, without a gate.
    fn from(mode: RequestedMode) -> Self {
        Self { mode, gate: &|_| Ok(()) }
    }
}

impl Opener<'_> {
    /// Opens a file, if the gate allows it.
    pub fn open(&self, path: &Path) -> Result<MappedFile> {
        (self.gate)(path)?;
        MappedFile::open(path, self.mode)
    }

    /// Opens a file, or returns `None` if it is missing. The gate is not called for a missing file.
    pub fn open_if_there(&self, path: &Path) -> Result<Option<MappedFile>> {
        if identity_at(path) == Err(NOT_FOUND) {
            return Ok(None);
        }
        match self.open(path) {
            Ok(file) => Ok(Some(file)),
            Err(error) if is_not_found(&error) => Ok(None),
            Err(error) => Err(error),
        }
    }
}

/// Returns the path with a suffix after its last component.
pub(super) fn with_suffix(path: &Path, suffix: &str) -> PathBuf {
    let mut name = path.as_os_str().to_owned();
    name.push(suffix);
    PathBuf::from(name)
}

/// Returns whether the error means that a path leads to no file. A directory of that name does not count as a file.
pub(super) fn is_not_found(error: &Error) -> bool {
    matches!(error, Error::System { errno, .. } if is_gone(*errno) || *errno == Code::ISDIR.raw_os_error())
}

/// Returns an error if the requested type differs from the type in the header.
pub(super) fn agree_dtype(path: &Path, offset: u64, found: Dtype, asked: Option<Dtype>) -> Result<()> {
    let Some(asked) = asked.filter(|&asked| asked != found) else { return Ok(()) };
    let (found, asked) = (token_dtype_name(found), token_dtype_name(asked));
    let detail = format!("the file holds {found} tokens, but dtype={asked} was asked for");
    Err(Error::format(path, offset, detail))
}

/// Returns the number of tokens in a file that contains nothing else.
pub(super) fn whole_tokens(path: &Path, size: u64, dtype: Dtype) -> Result<u64> {
    let (name, item_bytes) = (token_dtype_name(dtype), item_bytes(dtype));
    if size.is_multiple_of(item_bytes) {
        return Ok(size / item_bytes);
    }
    let detail = format!(
        "the file has {size} bytes, which is not a whole number of {name} tokens of {item_bytes} bytes; \
         pass the dtype that it was written with, or write it again"
    );
    Err(Error::format(path, None, detail))
}

/// Returns the size of a token in bytes. Every token type fills whole bytes.
pub fn item_bytes(dtype: Dtype) -> u64 {
    dtype.bits() / 8
}

/// Returns up to `len` bytes from the start of the file.
pub(super) fn read_prefix(opened: &Opened, len: u64) -> Result<Vec<u8>> {
    opened.exact_reader().read_last(0, len.min(opened.size()))
}

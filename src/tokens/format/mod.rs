//! Formats of token files: where in the file the tokens lie, and of which type they are.
//!
//! A format is told by its magic number, else the file is a raw stream. Files that are known to be
//! something else are refused by name: read as raw tokens they would give plausible nonsense.

mod npy;

use crate::dtype::Dtype;
use crate::error::{Error, Result};
use crate::mapped_file::{MappedFile, Opened};

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Format {
    /// Tokens and nothing else. nanoGPT's `.bin`.
    Raw,
    /// NumPy's `.npy`, one-dimensional.
    Npy,
}

impl Format {
    pub const WORDS: &'static [(&'static str, Self)] = &[("raw", Self::Raw), ("npy", Self::Npy)];

    pub fn from_word(word: &str) -> Result<Self> {
        Self::WORDS.iter().find(|(name, _)| *name == word).map(|(_, format)| *format).ok_or_else(|| {
            let words: Vec<_> = Self::WORDS.iter().map(|(name, _)| format!("{name:?}")).collect();
            Error::argument(format!("format is one of {}, not {word:?}", words.join(", ")))
        })
    }

    pub fn word(self) -> &'static str {
        match self {
            Self::Raw => "raw",
            Self::Npy => "npy",
        }
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

/// Bytes that are enough to know every magic number below.
const SNIFF_BYTES: u64 = 16;

/// First bytes of files that are not token streams, or not of a format that is read here.
const REFUSED: &[(&[u8], &str)] = &[
    (b"MMIDIDX\0\0", "a Megatron index (.idx), not tokens"),
    (b"TNTIDX\0\0", "a fairseq or gpt-neox index (.idx), not tokens"),
    (&20_240_522_i32.to_le_bytes(), "an llm.c evaluation file, not a token stream"),
    (&20_240_520_i32.to_le_bytes(), "an llm.c token shard, a format that is not read yet"),
    (&20_240_801_i32.to_le_bytes(), "an llm.c token shard for Llama 3, a format that is not read yet"),
    (b"PK\x03\x04", "a zip archive (.npz?); extract it first"),
    (b"\x1F\x8B", "compressed by gzip; decompress it first"),
    (b"\x28\xB5\x2F\xFD", "compressed by zstd; decompress it first"),
];

/// Finds out the layout, from a few bytes and the file's size.
pub fn layout(file: &MappedFile, dtype: Option<Dtype>, format: Option<Format>) -> Result<Layout> {
    let opened = file.opened()?;
    let sniffed = read_prefix(&opened, SNIFF_BYTES)?;
    let is_npy = sniffed.starts_with(npy::MAGIC);
    match format {
        Some(Format::Npy) if !is_npy => {
            let detail = "format=\"npy\" was asked for, but the file does not begin with \\x93NUMPY".into();
            Err(Error::Format { path: file.path().into(), offset: Some(0), detail })
        }
        Some(Format::Raw) => raw(file, &opened, dtype),
        _ if is_npy => npy::layout(file, &opened, dtype),
        _ => match REFUSED.iter().find(|(magic, _)| sniffed.starts_with(magic)) {
            Some((_, name)) => {
                let detail = format!(
                    "the file is {name}; if it is a raw token stream all the same, pass format=\"raw\""
                );
                Err(Error::Format { path: file.path().into(), offset: Some(0), detail })
            }
            None => raw(file, &opened, dtype),
        },
    }
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
    opened.read(0, len.min(opened.size()))
}

//! One safetensors file: its header, and the place of each tensor's bytes.

use std::path::Path;
use std::sync::Arc;

use crate::error::{Error, Result};
use crate::mapped_file::{GivenPath, MappedFile, Origin, RequestedMode, StateCache};

use super::header::{self, Header, HeaderError, HeaderErrorKind, LENGTH_BYTES};
use super::mistaken;
use super::strictness::Strictness;

/// Size of the first read. Most headers fit, and on a network each read costs a round trip.
const FIRST_READ_BYTES: u64 = 32 << 10;

/// Maximum memory of all cached headers.
const MAX_HEADERS_BYTES: usize = 64 << 20;

/// Headers of files opened earlier, for programs that open a file again for each tensor.
static HEADERS: StateCache<Strictness, Header> = StateCache::new(MAX_HEADERS_BYTES);

/// An open file with its header. Clones share the file.
#[derive(Debug, Clone)]
pub struct WeightFile {
    pub file: Arc<MappedFile>,
    pub header: Arc<Header>,
}

/// Parses the header of a file in memory. `head` is the file's beginning, and `size` its length in bytes.
pub fn parse_head(head: &[u8], size: u64, strictness: Strictness) -> Result<Header> {
    let parse = || {
        let length = header::header_bytes(head, size)?;
        let json = head.get(LENGTH_BYTES as usize..).unwrap_or_default();
        Header::parse(&json[..json.len().min(length as usize)], size, strictness)
    };
    // Upstream's wording for bytes in memory. For files it adds "header".
    parse().map_err(|error| refusal(Path::new(""), "Error while deserializing", &error, head, size))
}

/// The error for a file with a bad header. It names the true format if the first bytes show it, for example a zip file.
fn refusal(path: &Path, what: &str, error: &HeaderError, first: &[u8], size: u64) -> Error {
    if let HeaderErrorKind::NoMemory(error) = error.kind {
        return error.into();
    }
    let hint = mistaken::named(path, first, size).map_or_else(String::new, |hint| format!("; {hint}"));
    Error::Safetensors { path: path.into(), detail: format!("{what}: {error}{hint}") }
}

impl WeightFile {
    pub fn open(path: &GivenPath, mode: RequestedMode, strictness: Strictness) -> Result<Self> {
        Self::of(MappedFile::take_or_open(&Origin::Path(path.clone()), mode)?, strictness)
    }

    /// Opens a file for immediate read-ahead.
    pub fn open_to_read_ahead(path: &GivenPath, mode: RequestedMode, strictness: Strictness) -> Result<Self> {
        Self::of(MappedFile::take_or_offer(&Origin::Path(path.clone()), mode)?, strictness)
    }

    /// Reads the header of an open file.
    pub fn of(file: MappedFile, strictness: Strictness) -> Result<Self> {
        let header = header_of(&file, strictness)?;
        Ok(Self { file: Arc::new(file), header })
    }

    /// Returns whether this is the only owner of the open file.
    pub fn is_last(&self) -> bool {
        Arc::strong_count(&self.file) == 1
    }
}

/// Returns the header of an open file, from the cache if an earlier opening has read it.
pub fn header_of(file: &MappedFile, strictness: Strictness) -> Result<Arc<Header>> {
    let identity = file.opened()?.facts.identity;
    HEADERS.get_or_read(&identity, strictness, || read_header(file, strictness))
}

/// Reads the header into a private copy, so that another process cannot change the checked bytes.
fn read_header(file: &MappedFile, strictness: Strictness) -> Result<Header> {
    let opened = file.opened()?;
    let size = opened.size();
    // Read without read-ahead: the caller may want only a few rows, or none.
    let reader = opened.exact_reader();
    // Bytes behind the header may be unreadable.
    let first_read = reader.read(0, size.min(FIRST_READ_BYTES));
    let head = first_read.or_else(|_| reader.read(0, size.min(LENGTH_BYTES)))?;
    let read = || -> Result<_> {
        let length = match header::header_bytes(&head, size) {
            Ok(length) => length,
            Err(error) => return Ok(Err(error)),
        };
        match head.get(LENGTH_BYTES as usize..(LENGTH_BYTES + length) as usize) {
            Some(json) => Ok(Header::parse(json, size, strictness)),
            None => Ok(Header::parse(&reader.read(LENGTH_BYTES, length)?, size, strictness)),
        }
    };
    let found = read()?;
    // If the file was rewritten meanwhile, report that instead of a bad header.
    reader.finish()?;
    found.map_err(|error| refusal(file.path(), "Error while deserializing header", &error, &head, size))
}

//! One safetensors file: its header, and where each tensor's bytes lie.

use std::path::Path;

use crate::error::{Error, Result};
use crate::mapped_file::{MappedFile, RequestedMode};

use super::header::{self, Header, HeaderError, Strictness, TensorEntry};
use super::tensor::StoredTensor;

/// The header's length stands in the first bytes.
const PREFIX_BYTES: u64 = 8;

#[derive(Debug)]
pub struct WeightFile {
    file: MappedFile,
    header: Header,
}

impl WeightFile {
    /// Opens the file and reads its header, from a private copy: what is checked is what is used,
    /// whatever others do to the file meanwhile.
    pub fn open(path: &Path, mode: RequestedMode, strictness: Strictness) -> Result<Self> {
        let file = MappedFile::open(path, mode)?;
        let opened = file.opened()?;
        let size = opened.size();
        let wrong = |error: HeaderError| Error::Safetensors {
            path: path.into(),
            detail: format!("Error while deserializing header: {error}"),
        };
        // Of a file whose tensors may never be wanted, or a few rows of them: nothing is read ahead.
        let prefix = opened.peek(0, size.min(PREFIX_BYTES))?;
        let length = header::header_bytes(&prefix, size).map_err(wrong)?;
        let json = opened.peek(PREFIX_BYTES, length)?;
        let header = Header::parse(&json, size, strictness).map_err(wrong)?;
        Ok(Self { file, header })
    }

    pub fn file(&self) -> &MappedFile {
        &self.file
    }

    pub fn header(&self) -> &Header {
        &self.header
    }

    /// A tensor's bytes in the file, as (offset, length). The header's checks say that they lie in it.
    pub fn byte_range(&self, entry: &TensorEntry<'_>) -> (u64, u64) {
        (self.header.data_start() + entry.begin, entry.end - entry.begin)
    }

    /// A tensor that stays readable when this is closed.
    pub fn stored(&self, entry: &TensorEntry<'_>) -> Result<StoredTensor> {
        Ok(StoredTensor::new(self.file.opened()?, entry.dtype, entry.shape, self.byte_range(entry)))
    }
}

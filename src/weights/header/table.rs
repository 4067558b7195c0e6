//! [`HeaderTable`]: the entries of a header in a few flat vectors. A header may have a million entries, so no entry
//! owns an allocation.

use std::num::NonZeroU32;

use crate::allocate::{self, OutOfMemory};
use crate::dtype::Dtype;

/// A range in [`HeaderTable::text`] or [`HeaderTable::shapes`]. 32 bits suffice, because neither is longer than a
/// header, which has at most `MAX_HEADER_BYTES`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Span {
    pub start: u32,
    pub end: u32,
}

impl Span {
    pub fn new(start: usize, end: usize) -> Self {
        Self { start: start as u32, end: end as u32 }
    }

    pub fn range(self) -> std::ops::Range<usize> {
        self.start as usize..self.end as usize
    }
}

/// A string of the header and its place in the file. The place is unknown if the JSON has escapes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Text {
    pub span: Span,
    pub place: Option<NonZeroU32>,
}

impl Text {
    pub fn offset(self) -> Option<u64> {
        self.place.map(|place| u64::from(place.get()))
    }
}

#[derive(Debug, PartialEq, Eq)]
pub(super) struct Record {
    pub name: Text,
    pub shape: Span,
    pub dtype: Dtype,
    pub begin: u64,
    pub end: u64,
}

/// One key of `__metadata__`.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Pair {
    pub key: Text,
    pub value: Span,
}

#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct HeaderTable {
    pub text: String,
    pub shapes: Vec<u64>,
    pub records: Vec<Record>,
    pub metadata: Option<Vec<Pair>>,
    pub warnings: Vec<String>,
}

/// The purpose of memory for a header.
pub(super) const HEADER: &str = "the header of a safetensors file";

/// Typical length of an entry, for a first guess at the number of entries.
const ENTRY_BYTES: usize = 100;

impl HeaderTable {
    /// Creates a table for a header of this length, with capacity for all of its strings and for a typical number of
    /// entries.
    pub fn with_capacity(json_bytes: usize) -> Result<Self, OutOfMemory> {
        let entries = json_bytes / ENTRY_BYTES;
        Ok(Self {
            text: allocate::string(json_bytes, HEADER)?,
            shapes: allocate::vec(2 * entries, HEADER)?,
            records: allocate::vec(entries, HEADER)?,
            ..Self::default()
        })
    }

    pub fn text(&self, span: Span) -> &str {
        &self.text[span.range()]
    }

    pub fn name(&self, record: &Record) -> &str {
        self.text(record.name.span)
    }

    pub fn shape(&self, record: &Record) -> &[u64] {
        &self.shapes[record.shape.range()]
    }

    /// Returns the memory of the table in bytes, besides the value itself.
    pub fn memory_bytes(&self) -> usize {
        let warnings = self.warnings.iter().map(|warning| warning.capacity() + size_of::<String>());
        self.text.capacity()
            + self.shapes.capacity() * size_of::<u64>()
            + self.records.capacity() * size_of::<Record>()
            + self.metadata.as_ref().map_or(0, |pairs| pairs.capacity() * size_of::<Pair>())
            + warnings.sum::<usize>()
    }

    pub fn shrink(&mut self) {
        self.text.shrink_to_fit();
        self.shapes.shrink_to_fit();
        self.records.shrink_to_fit();
        if let Some(pairs) = &mut self.metadata {
            pairs.shrink_to_fit();
        }
    }
}

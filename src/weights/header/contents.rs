//! [`Header`]: a header that was read and checked. It finds tensors by name and in order of their data.

use super::error::{HeaderError, HeaderErrorKind};
use super::names::NameOrder;
use super::prefix::{LENGTH_BYTES, check_length};
use super::table::{HeaderTable, Record};
use super::{json, validate};
use crate::dtype::Dtype;
use crate::mapped_file::Keepable;
use crate::weights::strictness::Strictness;

/// A checked header: every tensor in it lies inside the file.
#[derive(Debug, Default)]
pub struct Header {
    table: HeaderTable,
    /// The offset of the tensors' data in the file, in bytes.
    pub data_start: u64,
    by_name: NameOrder,
    by_offset: Vec<u32>,
}

impl Keepable for Header {
    /// The header does not keep its JSON.
    fn memory_bytes(&self) -> usize {
        size_of::<Self>()
            + self.table.memory_bytes()
            + self.by_name.memory_bytes()
            + self.by_offset.capacity() * size_of::<u32>()
    }
}

/// One tensor, and the place of its bytes in the file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TensorEntry<'h> {
    pub name: &'h str,
    pub dtype: Dtype,
    pub shape: &'h [u64],
    pub offset: u64,
    pub len: u64,
}

impl Header {
    /// Parses the JSON. It starts at byte 8, and [`header_bytes`](super::header_bytes) returns its length.
    pub fn parse(json: &[u8], file_size: u64, strictness: Strictness) -> Result<Self, HeaderError> {
        let length = json.len() as u64;
        check_length(length, file_size)?;
        let data_start = LENGTH_BYTES + length;
        let text = std::str::from_utf8(json).map_err(|error| {
            let offset = LENGTH_BYTES + error.valid_up_to() as u64;
            HeaderError::new(
                HeaderErrorKind::InvalidUtf8,
                Some(offset),
                format!("invalid UTF-8 in header: {error}"),
            )
        })?;
        let mut table = json::parse(text, strictness)?;
        let by_name = validate::unique_names(&mut table, strictness)?;
        let by_offset = validate::offset_order(&table)?;
        validate::check_layout(&table, &by_offset, data_start, file_size)?;
        table.shrink();
        Ok(Self { table, data_start, by_name, by_offset })
    }

    pub fn len(&self) -> usize {
        self.table.records.len()
    }

    /// Returns the tensors in order of their names.
    pub fn tensors(&self) -> impl ExactSizeIterator<Item = TensorEntry<'_>> + DoubleEndedIterator {
        self.by_name.indices.iter().map(|&index| self.entry(index))
    }

    /// Returns the tensors in order of their data. Tensors at the same place are empty, and come in order of names.
    pub fn tensors_by_offset(&self) -> impl ExactSizeIterator<Item = TensorEntry<'_>> + DoubleEndedIterator {
        self.by_offset.iter().map(|&index| self.entry(index))
    }

    pub fn tensor(&self, name: &str) -> Option<TensorEntry<'_>> {
        Some(self.nth(self.rank(name)?))
    }

    /// Returns the position of a name in [`Self::tensors`].
    pub fn rank(&self, name: &str) -> Option<usize> {
        self.by_name.rank(name, |index| self.table.name(&self.table.records[index as usize]))
    }

    /// Returns the tensor of a rank, which must be below [`Self::len`].
    pub fn nth(&self, rank: usize) -> TensorEntry<'_> {
        self.entry(self.by_name.indices[rank])
    }

    /// Returns the pairs of `__metadata__`, in the order of the header.
    pub fn metadata(&self) -> Option<impl ExactSizeIterator<Item = (&str, &str)>> {
        let pairs = self.table.metadata.as_ref()?;
        Some(pairs.iter().map(|pair| (self.table.text(pair.key.span), self.table.text(pair.value))))
    }

    /// Returns warnings about fields that the format does not have. After the first few they are only counted.
    pub fn warnings(&self) -> &[String] {
        &self.table.warnings
    }

    fn entry(&self, index: u32) -> TensorEntry<'_> {
        let record = &self.table.records[index as usize];
        let Record { dtype, begin, end, .. } = *record;
        let (name, shape) = (self.table.name(record), self.table.shape(record));
        TensorEntry { name, dtype, shape, offset: self.data_start + begin, len: end - begin }
    }
}

//! Sizes of rows, and the offsets of a batch's arrays in its buffer. All values that depend on the length of a window
//! are computed here, once.

use std::ops::Range;

use crate::dtype::Dtype;
use crate::error::{Error, Result};
use crate::fetch::ranges::ByteRange;
use crate::os::memory;
use crate::os::memory::anonymous::Anonymous;
use crate::os::memory::parts::{Part, Whole, split};
use crate::tokens::windows::Target;
use crate::widen::Element;

use super::options::Documents;
use super::plan::{BatchRow, Feed};

/// Size of a chunk while storage is calm: long enough that claiming and finishing it costs next to nothing.
const CHUNK_BYTES: usize = 1 << 20;
/// Maximum number of chunks in a batch: more would keep no more threads busy, and each takes memory.
const MAX_CHUNKS: usize = 1024;

/// Sizes, and the offsets of x, y, position ids and the loss mask in a buffer, in bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct BatchLayout {
    /// Number of rows in a full batch.
    pub rows: usize,
    /// Number of tokens of x in a row.
    pub tokens: u64,
    pub row_bytes: usize,
    pub y_offset: Option<usize>,
    pub position_row_bytes: usize,
    pub positions_offset: Option<usize>,
    pub mask_row_bytes: usize,
    pub mask_offset: Option<usize>,
    pub buffer_bytes: usize,
    /// Cached bytes that the windows of a full batch need, plus the bytes for keeping track of them.
    pub ahead_bytes: u64,
}

/// Rows of a batch, and their memory.
#[derive(Debug)]
pub(super) struct RowChunk {
    pub rows: Range<usize>,
    pub x: Part,
    pub y: Option<Part>,
    /// Position ids, for batches that distinguish documents.
    pub positions: Option<Part>,
    /// The loss mask, for the same batches: one byte per token.
    pub mask: Option<Part>,
}

/// Returns the size of a row of x, or of y, in bytes.
pub(super) fn row_bytes(tokens: u64, dtype: Dtype, element: Element) -> Option<usize> {
    tokens.checked_mul(element.bytes(dtype)).and_then(|bytes| usize::try_from(bytes).ok())
}

/// Returns the size of a position id in bytes: as wide as x, or 32 bits if x has the files' type.
fn position_bytes(element: Element) -> u64 {
    if element == Element::I64 { 8 } else { 4 }
}

impl BatchLayout {
    pub(super) fn new(feed: &Feed, element: Element, documents: Documents) -> Result<Self> {
        let too_large = || Error::argument("a batch takes more than 2^63 bytes");
        let Some(source) = feed.sources.first() else { return Err(Error::argument("no corpus was given")) };
        let rows = feed.share.batch_size;
        let tokens = source.windows.sequence_length;
        let row = row_bytes(tokens, source.corpus.dtype, element).ok_or_else(too_large)? as u64;
        let position_row = tokens.checked_mul(position_bytes(element)).ok_or_else(too_large)?;
        let mut end = 0_u64;
        let mut place = |wanted: bool, row: u64| -> Result<Option<usize>> {
            if !wanted {
                return Ok(None);
            }
            let offset = end.checked_next_multiple_of(64).ok_or_else(too_large)?;
            end = row.checked_mul(rows).and_then(|bytes| offset.checked_add(bytes)).ok_or_else(too_large)?;
            Ok(Some(offset as usize))
        };
        place(true, row)?;
        let y_offset = place(source.windows.target != Target::None, row)?;
        let is_packed = documents != Documents::Ignore;
        let positions_offset = place(is_packed, position_row)?;
        let mask_offset = place(is_packed, tokens)?;
        Ok(Self {
            rows: rows as usize,
            tokens,
            row_bytes: row as usize,
            y_offset,
            position_row_bytes: position_row as usize,
            positions_offset,
            mask_row_bytes: tokens as usize,
            mask_offset,
            buffer_bytes: isize::try_from(end).map_err(|_| too_large())? as usize,
            ahead_bytes: ahead_bytes(feed),
        })
    }

    /// Returns the number of rows in a chunk. While storage is slow each thread takes one, so that many threads wait in
    /// parallel.
    fn chunk_rows(&self, rows: usize, is_slow: bool) -> usize {
        let each = self.buffer_bytes.div_ceil(self.rows.max(1)).max(1);
        let wanted = if is_slow { 1 } else { (CHUNK_BYTES / each).max(1) };
        wanted.max(rows.div_ceil(MAX_CHUNKS))
    }

    /// Splits the buffer into chunks, in order.
    pub(super) fn chunks(
        &self,
        block: Anonymous,
        rows: usize,
        is_slow: bool,
    ) -> Result<(Whole, Vec<RowChunk>)> {
        let each = self.chunk_rows(rows, is_slow);
        let ranges: Vec<Range<usize>> =
            (0..rows).step_by(each).map(|first| first..rows.min(first + each)).collect();
        let arrays = [
            Some((0, self.row_bytes)),
            self.y_offset.map(|offset| (offset, self.row_bytes)),
            self.positions_offset.map(|offset| (offset, self.position_row_bytes)),
            self.mask_offset.map(|offset| (offset, self.mask_row_bytes)),
        ];
        let places: Vec<(usize, usize)> = arrays
            .iter()
            .flatten()
            .flat_map(|&(offset, row)| {
                ranges.iter().map(move |rows| (offset + rows.start * row, rows.len() * row))
            })
            .collect();
        let (whole, parts) = split(block, &places).map_err(|_| Error::argument("the buffer is too small"))?;
        let mut parts = parts.into_iter();
        let of_x = ranges.into_iter().zip(&mut parts);
        let mut chunks: Vec<_> =
            of_x.map(|(rows, x)| RowChunk { rows, x, y: None, positions: None, mask: None }).collect();
        for chunk in chunks.iter_mut().filter(|_| self.y_offset.is_some()) {
            chunk.y = parts.next();
        }
        for chunk in chunks.iter_mut().filter(|_| self.positions_offset.is_some()) {
            chunk.positions = parts.next();
        }
        for chunk in chunks.iter_mut().filter(|_| self.mask_offset.is_some()) {
            chunk.mask = parts.next();
        }
        Ok((whole, chunks))
    }
}

fn ahead_bytes(feed: &Feed) -> u64 {
    let page = memory::page_bytes() as u64;
    let noted = (size_of::<BatchRow>() + size_of::<ByteRange>()) as u64;
    let window = feed.sources.iter().map(|source| {
        let tokens = source.windows.sequence_length;
        tokens.saturating_mul(source.corpus.item_bytes()).saturating_add(page + noted)
    });
    window.max().unwrap_or(page).saturating_mul(feed.share.batch_size)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_batch_has_a_bounded_number_of_chunks() {
        let layout = |row_bytes: usize| BatchLayout {
            rows: 10,
            tokens: 1,
            row_bytes,
            y_offset: None,
            position_row_bytes: 0,
            positions_offset: None,
            mask_row_bytes: 0,
            mask_offset: None,
            buffer_bytes: 10 * row_bytes,
            ahead_bytes: 0,
        };
        for rows in [1, 7, 1024, 1025, 100_000, 1 << 24] {
            for (row_bytes, is_slow) in [(16, true), (4096, true), (16, false), (8 << 20, false)] {
                let each = layout(row_bytes).chunk_rows(rows, is_slow);
                assert!(rows.div_ceil(each) <= MAX_CHUNKS, "{rows} rows of {row_bytes} bytes");
            }
        }
        assert_eq!(layout(4096).chunk_rows(64, true), 1);
        assert_eq!(layout(4096).chunk_rows(1000, false), 256);
    }
}

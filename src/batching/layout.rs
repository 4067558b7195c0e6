//! Where the arrays of a batch lie in its buffer.

use std::ops::Range;

use crate::error::{Error, Result};
use crate::os::memory::anonymous::Anonymous;
use crate::os::memory::parts::{Part, Whole, split};
use crate::tokens::windows::Target;
use crate::widen::Element;

use super::gatherer::{RowChunk, position_bytes};
use super::plan::Feed;

/// Where x, y and position ids lie in a buffer, in bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct BatchLayout {
    /// Of a full batch.
    pub rows: usize,
    pub row_bytes: usize,
    pub y_offset: Option<usize>,
    pub position_row_bytes: usize,
    pub positions_offset: Option<usize>,
    pub buffer_bytes: usize,
}

impl BatchLayout {
    pub(super) fn new(feed: &Feed, element: Element, documents: bool) -> Result<Self> {
        let too_large = || Error::argument("a batch takes more than 2^63 bytes");
        let Some(source) = feed.sources().first() else { return Err(Error::argument("no corpus was given")) };
        let rows = feed.share().batch_size;
        let tokens = source.windows.sequence_length();
        let bytes = |each: u64| tokens.checked_mul(each).and_then(|row| Some((row, row.checked_mul(rows)?)));
        let aligned = |offset: u64| offset.checked_next_multiple_of(64);
        let (row, x) = bytes(element.bytes(source.corpus.dtype())).ok_or_else(too_large)?;
        let mut end = x;
        let mut place = |wanted: bool, bytes: u64| -> Result<Option<usize>> {
            if !wanted {
                return Ok(None);
            }
            let offset = aligned(end).ok_or_else(too_large)?;
            end = offset.checked_add(bytes).ok_or_else(too_large)?;
            Ok(Some(offset as usize))
        };
        let y_offset = place(source.windows.target() != Target::None, x)?;
        let (position_row, positions) = bytes(position_bytes(element)).ok_or_else(too_large)?;
        let positions_offset = place(documents, positions)?;
        let buffer_bytes = isize::try_from(end).map_err(|_| too_large())? as usize;
        Ok(Self {
            rows: rows as usize,
            row_bytes: row as usize,
            y_offset,
            position_row_bytes: position_row as usize,
            positions_offset,
            buffer_bytes,
        })
    }

    /// The buffer as chunks of `chunk_rows` rows, in order.
    pub(super) fn chunks(
        &self,
        block: Anonymous,
        rows: usize,
        chunk_rows: usize,
    ) -> Result<(Whole, Vec<RowChunk>)> {
        let ranges: Vec<Range<usize>> = (0..rows)
            .step_by(chunk_rows.max(1))
            .map(|first| first..rows.min(first + chunk_rows.max(1)))
            .collect();
        let arrays = [
            Some((0, self.row_bytes)),
            self.y_offset.map(|offset| (offset, self.row_bytes)),
            self.positions_offset.map(|offset| (offset, self.position_row_bytes)),
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
        let mut column = |wanted: bool| -> Vec<Option<Part>> {
            ranges.iter().map(|_| if wanted { parts.next() } else { None }).collect()
        };
        let (x, y, positions) =
            (column(true), column(self.y_offset.is_some()), column(self.positions_offset.is_some()));
        let rows = ranges.into_iter().zip(x).zip(y.into_iter().zip(positions));
        let chunks =
            rows.filter_map(|((rows, x), (y, positions))| Some(RowChunk { rows, x: x?, y, positions }));
        Ok((whole, chunks.collect()))
    }
}

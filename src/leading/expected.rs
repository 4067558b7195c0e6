//! [`Expected`]: the predicted tensors of a file, and the stream that reads them.

use std::sync::Arc;

use crate::slicing::Selection;

use super::uses::NEAR_TENSORS;
use crate::streaming::engine::Stream;
use crate::streaming::plan::Want;

/// A stream of predicted tensors.
#[derive(Debug)]
pub struct Expected {
    pub stream: Arc<Stream>,
    pub wants: Vec<Want>,
    /// The place of each want in the order that the program follows; they ascend.
    pub places: Vec<usize>,
    /// Whether the wants are the rest of a row, rather than the rest of the file.
    pub is_row: bool,
    /// Limit on read-ahead at the start of the stream.
    pub first_bytes: u64,
    /// Bytes that the program has requested from the stream.
    pub used_bytes: u64,
}

impl Expected {
    /// Returns whether the stream has the requested tensor, or will have it soon.
    pub fn has(&self, place: usize, selection: Option<&Selection>) -> bool {
        self.find(place, selection).is_some_and(|want| self.stream.has(want, NEAR_TENSORS))
    }

    /// Reserves the requested tensor in the stream. Returns its want number if the stream has it, or will have it after
    /// at most `near` more groups.
    pub fn reserve(&self, place: usize, selection: Option<&Selection>, near: usize) -> Option<usize> {
        self.find(place, selection).filter(|&want| self.stream.reserve(want, near))
    }

    /// Leaves the tensors from place `end` on to another lead; `None` for no end.
    pub fn end_before(&self, end: Option<usize>) {
        let want = end.map_or(self.places.len(), |end| self.places.partition_point(|&place| place < end));
        self.stream.end_before(want);
    }

    fn find(&self, place: usize, selection: Option<&Selection>) -> Option<usize> {
        let number = self.places.binary_search(&place).ok()?;
        (self.wants[number].selection.as_ref() == selection).then_some(number)
    }
}

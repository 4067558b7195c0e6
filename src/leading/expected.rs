//! [`Expected`]: the tensors that the consumer of a file is expected to ask for, and the stream that reads them.

use std::sync::Arc;

use crate::slicing::Selection;

use super::uses::NEAR_TENSORS;
use crate::streaming::engine::Stream;
use crate::streaming::plan::Want;

/// A stream of tensors that are expected.
#[derive(Debug)]
pub struct Expected {
    pub stream: Arc<Stream>,
    pub wants: Vec<Want>,
    /// The place of each want in the order that is followed; they ascend.
    pub places: Vec<usize>,
    /// Whether they are the rest of a row, and not of the file.
    pub is_row: bool,
    /// Bytes that the stream may read ahead at first.
    pub first_bytes: u64,
    /// Bytes that were asked for.
    pub used_bytes: u64,
}

impl Expected {
    /// Returns whether the stream has what is asked for, or is about to have it.
    pub fn has(&self, place: usize, selection: Option<&Selection>) -> bool {
        self.find(place, selection).is_some_and(|want| self.stream.has(want, NEAR_TENSORS))
    }

    /// Reserves what is asked for in the stream. Returns the number of the want, if it is there or will be after `near`
    /// others at most.
    pub fn reserve(&self, place: usize, selection: Option<&Selection>, near: usize) -> Option<usize> {
        self.find(place, selection).filter(|&want| self.stream.reserve(want, near))
    }

    /// Leaves what is expected from a place on to others.
    pub fn end_before(&self, end: Option<usize>) {
        let want = end.map_or(self.places.len(), |end| self.places.partition_point(|&place| place < end));
        self.stream.end_before(want);
    }

    fn find(&self, place: usize, selection: Option<&Selection>) -> Option<usize> {
        let number = self.places.binary_search(&place).ok()?;
        (self.wants[number].selection.as_ref() == selection).then_some(number)
    }
}

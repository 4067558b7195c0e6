//! [`Expected`]: the tensors that the consumer of a file is expected to ask for, and the stream that reads them.

use std::sync::Arc;

use crate::slicing::Selection;

use super::engine::Stream;
use super::plan::Want;

/// Tensors of several threads come in nearly the right order. A request this near is no jump.
pub const NEAR_TENSORS: usize = 32;

/// A stream of tensors that are expected.
#[derive(Debug)]
pub struct Expected {
    pub stream: Arc<Stream>,
    pub wants: Vec<Want>,
    /// The place of each want in the order that is followed; they ascend.
    pub places: Vec<usize>,
    pub is_used: bool,
}

impl Expected {
    /// Returns the number of a want, if it is the one that is asked for and there or about to come.
    pub fn find(&self, place: usize, selection: Option<&Selection>) -> Option<usize> {
        let number = self.places.binary_search(&place).ok()?;
        let is_it = self.wants[number].selection.as_ref() == selection;
        (is_it && self.stream.has(number, NEAR_TENSORS)).then_some(number)
    }
}

//! Assembles one batch from given windows, for callers that choose them: map-style datasets.

use std::sync::Arc;

use crate::error::{Error, Result};
use crate::os::memory::Uninit;
use crate::tokens::corpus::TokenCorpus;
use crate::tokens::windows::{Target, Windows};
use crate::widen::Element;

use super::layout::row_bytes;
use super::row::RowCopier;

/// Fills x and y, of `[windows, sequence_length]` elements each, without gaps, with the windows `indices`, in that
/// order. y is absent exactly for [`Target::None`].
///
/// A token at or beyond `vocabulary` is an error. So is a file that was truncated or rewritten meanwhile: each shard is
/// checked once, at the end. After an error the content of the memory is undefined.
pub fn assemble(
    corpus: &Arc<TokenCorpus>,
    windows: &Windows,
    indices: &[u64],
    element: Element,
    vocabulary: Option<u64>,
    mut x: Uninit<'_>,
    mut y: Option<Uninit<'_>>,
) -> Result<()> {
    let row_bytes = row_bytes(windows.sequence_length, corpus.dtype, element).unwrap_or(usize::MAX);
    let needed = row_bytes.checked_mul(indices.len());
    let has_targets = windows.target != Target::None;
    if needed != Some(x.len()) || y.as_ref().map(Uninit::len) != needed.filter(|_| has_targets) {
        return Err(Error::argument("the memory for the batch is not of the batch's size"));
    }
    let mut copier = RowCopier::new(corpus.clone(), vocabulary, None);
    for (row, &index) in indices.iter().enumerate() {
        let place = row * row_bytes..(row + 1) * row_bytes;
        let y_row = y.as_mut().map(|y| y.range(place.clone()));
        copier.row(windows.tokens(index)?, element, x.range(place), y_row)?;
    }
    corpus.verify_now(copier.take_touched())
}

//! One batch: the windows with the given numbers, copied and widened into the caller's memory.

use std::mem::MaybeUninit;

use crate::error::{Error, Result};
use crate::gather::{self, Element};
use crate::os::{self, fault};
use crate::tokens::corpus::TokenCorpus;
use crate::tokens::windows::{Target, Windows};

/// Where a batch goes: `[windows, sequence_length]` elements each, without gaps.
#[derive(Debug)]
pub struct Room<'a> {
    pub x: &'a mut [MaybeUninit<u8>],
    /// `None` exactly for [`Target::None`].
    pub y: Option<&'a mut [MaybeUninit<u8>]>,
}

/// Fills `room` with the windows `indices`, in that order.
///
/// Each shard that was touched is looked at once, at the end: a file that was cut or rewritten
/// meanwhile is an error, and then the room's content is undefined.
pub fn assemble(
    corpus: &TokenCorpus,
    windows: &Windows,
    indices: &[u64],
    element: Element,
    room: Room<'_>,
) -> Result<()> {
    let row_bytes = windows.sequence_length().checked_mul(element.bytes(corpus.dtype()));
    let row_bytes = row_bytes.and_then(|bytes| usize::try_from(bytes).ok()).unwrap_or(usize::MAX);
    let needed = row_bytes.checked_mul(indices.len());
    let has_targets = windows.target() != Target::None;
    if needed != Some(room.x.len()) || room.y.as_ref().map(|y| y.len()) != needed.filter(|_| has_targets) {
        return Err(Error::argument("the room for the batch is not of the batch's size"));
    }
    let guarded = fault::ready();
    let mut scratch = Vec::new();
    let mut touched = Vec::new();
    let mut y = room.y;
    for (row, &index) in indices.iter().enumerate() {
        let (start, stop) = windows.tokens(index)?;
        copy_window(corpus, (start, stop), guarded, &mut scratch, &mut touched)?;
        let item_bytes = corpus.item_bytes() as usize;
        let place = row * row_bytes..(row + 1) * row_bytes;
        let inputs = windows.sequence_length() as usize * item_bytes;
        widen(corpus, &scratch[..inputs], start, element, &mut room.x[place.clone()])?;
        if let Some(y) = &mut y {
            widen(corpus, &scratch[item_bytes..], start + 1, element, &mut y[place])?;
        }
    }
    touched.sort_unstable();
    touched.dedup();
    touched.into_iter().try_for_each(|shard: usize| corpus.shards()[shard].file.opened()?.verify())
}

/// Copies one window's tokens to `scratch`, as they are in the file.
fn copy_window(
    corpus: &TokenCorpus,
    (start, stop): (u64, u64),
    guarded: bool,
    scratch: &mut Vec<u8>,
    touched: &mut Vec<usize>,
) -> Result<()> {
    let length = (stop - start) * corpus.item_bytes();
    scratch.resize(length as usize, 0);
    let mut rest = scratch.as_mut_slice();
    for piece in corpus.pieces(start, stop)? {
        let (offset, length) = corpus.byte_range(piece);
        let (part, after) = rest.split_at_mut(length as usize);
        rest = after;
        corpus.shards()[piece.shard].file.opened()?.copy_into(offset, os::room(part), guarded)?;
        if touched.last() != Some(&piece.shard) {
            touched.push(piece.shard);
        }
    }
    Ok(())
}

fn widen(
    corpus: &TokenCorpus,
    source: &[u8],
    first: u64,
    element: Element,
    out: &mut [MaybeUninit<u8>],
) -> Result<()> {
    gather::widen(source, corpus.dtype(), element, out)
        .map_err(|refused| does_not_fit(corpus, first + refused.position as u64, element))
}

fn does_not_fit(corpus: &TokenCorpus, token: u64, element: Element) -> Error {
    let shard = corpus.shard_of(token);
    let detail = format!(
        "token {token} of the corpus (number {} of this file) does not fit in {}; use {}",
        token - shard.start,
        element.word(),
        if element == Element::I32 { "dtype=\"int64\" or \"raw\"" } else { "dtype=\"raw\"" }
    );
    let offset = shard.layout.data_offset_bytes + (token - shard.start) * corpus.item_bytes();
    Error::Format { path: shard.file.path().into(), offset: Some(offset), detail }
}

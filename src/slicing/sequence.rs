//! [`Sequence`]: reads ahead for parts of tensors that are requested in sequence, such as the experts of a layer.
//!
//! ```text
//!   a part ──(begins where the last one ended)──> a piece from there on, twice as long as the last ──> this part, and more
//!     └──(elsewhere, or it is cached)──> left to the caller
//! ```
//!
//! It wastes at most as many bytes as the program has used.

use std::ops::Range;
use std::sync::{Arc, Mutex};

use super::{MAX_READERS, Selection, fill, plan_for};
use crate::error::Result;
use crate::fetch::crew::KeepGoing;
use crate::mapped_file::{Opened, page_cache};
use crate::os::memory::{Uninit, zeroed};
use crate::os::process::fork;

/// Longer parts are read directly, by several threads.
const MAX_PART_BYTES: u64 = 1 << 20;
const MAX_PIECE_BYTES: u64 = 8 << 20;
/// Length of the first piece, in parts.
const FIRST_PARTS: u64 = 4;

/// The requested parts of a file.
#[derive(Debug, Default)]
pub struct Sequence(Mutex<SequenceState>);

#[derive(Debug, Default)]
struct SequenceState {
    /// The end of the last part.
    end: u64,
    piece: Arc<SequencePiece>,
    /// Whether the sequence is closed, and keeps no pieces.
    is_closed: bool,
}

#[derive(Debug, Default)]
struct SequencePiece {
    start: u64,
    bytes: Vec<u8>,
}

impl SequencePiece {
    fn part(&self, range: &Range<u64>) -> Option<&[u8]> {
        let start = usize::try_from(range.start.checked_sub(self.start)?).ok()?;
        self.bytes.get(start..start.checked_add(usize::try_from(range.end - range.start).ok()?)?)
    }
}

impl Sequence {
    /// Returns whether a range of the file continues a sequence. If not, it records the request.
    pub fn goes_on_with(&self, range: &Range<u64>) -> bool {
        fork::with_lock(&self.0, |state| {
            let goes_on = state.end == range.start || state.piece.part(range).is_some();
            if !goes_on {
                state.end = range.end;
            }
            goes_on
        })
    }

    /// Fills `out` with a range of the file if the range continues a sequence, and returns whether it did.
    /// `limit_bytes` is the maximum amount to read ahead.
    ///
    /// It checks for a rewrite of the file: with the server after reading a piece, and with the kernel's attributes for
    /// each part.
    pub fn fill(
        &self,
        opened: &Opened,
        range: Range<u64>,
        limit_bytes: u64,
        mut out: Uninit<'_>,
        keep_going: &mut KeepGoing<'_>,
    ) -> Result<bool> {
        let length = range.end - range.start;
        let (piece, follows) = fork::with_lock(&self.0, |state| {
            let follows = state.end == range.start && !state.is_closed;
            state.end = range.end;
            (state.piece.clone(), follows)
        });
        if let Some(part) = piece.part(&range) {
            out.copy_from_slice(part);
            opened.verify_as_known()?;
            return Ok(true);
        }
        let limit_bytes = limit_bytes.min(MAX_PIECE_BYTES);
        if !follows || length > MAX_PART_BYTES.min(limit_bytes) {
            return Ok(false);
        }
        let is_resident = page_cache::is_resident(opened, range.start, length);
        if opened.reads_from_cache() && is_resident == Some(true) {
            return Ok(false);
        }
        let wanted = (2 * piece.bytes.len() as u64).max(FIRST_PARTS * length).min(limit_bytes);
        let end = opened.size().min(range.start.saturating_add(wanted)).max(range.end);
        // At most `MAX_PIECE_BYTES`. Without memory, the part is read alone.
        let Ok(mut bytes) = zeroed((end - range.start) as usize, "parts of tensors") else {
            return Ok(false);
        };
        let selection = Selection::new(range.start, &[end - range.start], &[1], 1, opened.size())?;
        let plan = plan_for(opened, 0, selection, MAX_READERS);
        fill(opened, 0, &plan, Uninit::of(&mut bytes), MAX_READERS, keep_going)?;
        opened.verify_with_server()?;
        let piece = Arc::new(SequencePiece { start: range.start, bytes });
        let part = piece.part(&range).unwrap_or_default();
        out.copy_from_slice(part);
        fork::with_lock(&self.0, |state| {
            if !state.is_closed {
                state.piece = piece.clone();
            }
        });
        Ok(true)
    }

    /// Frees the memory.
    pub fn close(&self) {
        let piece = fork::with_lock(&self.0, |state| {
            state.is_closed = true;
            std::mem::take(&mut state.piece)
        });
        drop(piece);
    }
}

//! Large mappings are unmapped by a thread of their own: munmap(2) of a gigabyte whose pages were all used takes
//! some 10 ms, and a hundred gigabytes would hold up whoever drops the last array.
//!
//! A child that is forked meanwhile has the mappings, and not the threads. So what is still mapped is listed, a
//! fork waits until the list tells the truth, and the child unmaps what it lists.

use std::sync::{Mutex, MutexGuard, PoisonError};

use memmap2::MmapRaw;

use crate::os::process::fork;

/// Smaller mappings are unmapped by who drops them.
const ASIDE_BYTES: usize = 64 << 20;
/// How many may be under way at once; what goes beyond is unmapped by who drops it.
const MOST: usize = 4;
/// By one call: a fork waits for no more than that.
const PIECE_BYTES: usize = 1 << 30;

static PENDING: Mutex<Pending> = Mutex::new(Pending([None; MOST]));

/// What is still to be unmapped. Of a fixed size: a child that was just forked must not allocate.
#[derive(Debug)]
pub struct Pending([Option<Mapped>; MOST]);

#[derive(Debug, Clone, Copy)]
struct Mapped {
    address: usize,
    len: usize,
}

/// Unmaps: at once if it is small.
pub fn unmap(mapping: MmapRaw) {
    if mapping.len() < ASIDE_BYTES {
        return;
    }
    fork::watch();
    let Some(slot) = lock().list(&mapping) else { return };
    std::mem::forget(mapping); // The list has it.
    let thread = std::thread::Builder::new().name("pagestream-unmap".into());
    if thread.spawn(move || while unmap_piece(slot) {}).is_err() {
        lock().unmap(slot);
    }
}

/// False where nothing was left.
fn unmap_piece(slot: usize) -> bool {
    // No fork between the two: the child would unmap what the addresses have come to hold since, or nothing.
    let _section = fork::section();
    let piece = lock().take_piece(slot);
    piece.map(Mapped::unmap).is_some()
}

/// Never held for long, and by no thread when one forks. A section is not needed, and may be there already:
/// mappings are dropped in some.
pub fn lock() -> MutexGuard<'static, Pending> {
    PENDING.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Pending {
    /// Unmaps all that is left, as no other thread will: in a child that was just forked.
    pub fn adopt(&mut self) {
        (0..MOST).for_each(|slot| self.unmap(slot));
    }

    fn unmap(&mut self, slot: usize) {
        if let Some(mapped) = self.0[slot].take() {
            mapped.unmap();
        }
    }

    /// The place it has got, unless there are too many.
    fn list(&mut self, mapping: &MmapRaw) -> Option<usize> {
        let slot = self.0.iter().position(Option::is_none)?;
        let address = mapping.as_mut_ptr().expose_provenance();
        self.0[slot] = Some(Mapped { address, len: mapping.len() });
        Some(slot)
    }

    /// From the end, so that what is left stays one mapping.
    fn take_piece(&mut self, slot: usize) -> Option<Mapped> {
        let mapped = self.0[slot]?;
        let left = mapped.len.saturating_sub(1) / PIECE_BYTES * PIECE_BYTES;
        self.0[slot] = (left > 0).then_some(Mapped { len: left, ..mapped });
        Some(Mapped { address: mapped.address + left, len: mapped.len - left })
    }
}

impl Mapped {
    fn unmap(self) {
        let address = std::ptr::with_exposed_provenance_mut(self.address);
        // SAFETY: part of a mapping that `unmap` took over from its owner, and that left the list: no other
        // thread unmaps it, and nobody has its address any more.
        let unmapped = unsafe { rustix::mm::munmap(address, self.len) };
        debug_assert_eq!(unmapped, Ok(()));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pieces_go_from_the_end_and_cover_all_once() {
        for len in [1, PIECE_BYTES - 1, PIECE_BYTES, PIECE_BYTES + 1, 5 * PIECE_BYTES + 12_345] {
            let mut pending = Pending([None, Some(Mapped { address: 1 << 40, len }), None, None]);
            let mut end = (1 << 40) + len;
            while let Some(piece) = pending.take_piece(1) {
                assert_eq!(piece.address + piece.len, end);
                assert!((1..=PIECE_BYTES).contains(&piece.len));
                assert_eq!(piece.address % PIECE_BYTES, 0);
                end = piece.address;
            }
            assert_eq!(end, 1 << 40);
            assert!(pending.0.iter().all(Option::is_none));
        }
    }
}

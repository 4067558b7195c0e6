//! Unmaps large mappings in a separate thread: munmap(2) of a gigabyte whose pages were all used takes about
//! 10 ms, and a hundred gigabytes would delay the thread that drops the last array.
//!
//! A child forked meanwhile inherits the mappings but not the threads. A list therefore records what is still
//! mapped; `fork` waits until it is accurate, and the child unmaps what it lists.

use std::sync::{Mutex, MutexGuard, PoisonError};

use memmap2::MmapRaw;

use crate::os::process::fork;

/// Smaller mappings are unmapped by the thread that drops them.
const ASIDE_BYTES: usize = 64 << 20;
/// Upper bound of mappings that are unmapped at once; any more are unmapped by the threads that drop them.
const MAX_PENDING: usize = 4;
/// Upper bound of bytes unmapped by one call, and so of what a fork waits for.
const PIECE_BYTES: usize = 1 << 30;

static PENDING: Mutex<Pending> = Mutex::new(Pending([None; MAX_PENDING]));

/// Mappings still to be unmapped. The size is fixed because a child that was just forked must not allocate.
#[derive(Debug)]
pub struct Pending([Option<PendingUnmap>; MAX_PENDING]);

#[derive(Debug, Clone, Copy)]
struct PendingUnmap {
    address: usize,
    len: usize,
}

/// Unmaps a mapping; at once if it is small.
pub fn unmap(mapping: MmapRaw) {
    if mapping.len() < ASIDE_BYTES {
        return;
    }
    let Some(place) = lock().list(&mapping) else { return };
    std::mem::forget(mapping); // The list owns it now.
    let thread = std::thread::Builder::new().name("pagestream-unmap".into());
    if thread.spawn(move || while unmap_piece(place) {}).is_err() {
        lock().unmap(place);
    }
}

/// Unmaps the next piece. Returns false if nothing was left.
fn unmap_piece(place: usize) -> bool {
    // No fork may come between the two steps: the child would never unmap the piece.
    let _section = fork::section();
    let piece = lock().take_piece(place);
    piece.map(PendingUnmap::unmap).is_some()
}

/// Locks the list. Callers hold the lock only briefly, because `fork` waits for it. They need no section, but may
/// be in one: some mappings are dropped in a section.
pub fn lock() -> MutexGuard<'static, Pending> {
    PENDING.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Pending {
    /// Unmaps all that is left. Called in a child that was just forked, which has no other thread to do it.
    pub fn adopt(&mut self) {
        (0..MAX_PENDING).for_each(|place| self.unmap(place));
    }

    fn unmap(&mut self, place: usize) {
        if let Some(mapped) = self.0[place].take() {
            mapped.unmap();
        }
    }

    /// Lists a mapping and returns its place, unless there are too many.
    fn list(&mut self, mapping: &MmapRaw) -> Option<usize> {
        let place = self.0.iter().position(Option::is_none)?;
        let address = mapping.as_mut_ptr().expose_provenance();
        self.0[place] = Some(PendingUnmap { address, len: mapping.len() });
        Some(place)
    }

    /// Takes a piece from the end, so that the rest stays one mapping.
    fn take_piece(&mut self, place: usize) -> Option<PendingUnmap> {
        let mapped = self.0[place]?;
        let left = mapped.len.saturating_sub(1) / PIECE_BYTES * PIECE_BYTES;
        self.0[place] = (left > 0).then_some(PendingUnmap { len: left, ..mapped });
        Some(PendingUnmap { address: mapped.address + left, len: mapped.len - left })
    }
}

impl PendingUnmap {
    fn unmap(self) {
        let address = std::ptr::with_exposed_provenance_mut(self.address);
        // SAFETY: part of a mapping that `unmap` took over from its owner, and that left the list: no other
        // thread unmaps it, and no code has its address any more.
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
            let mut pending = Pending([None, Some(PendingUnmap { address: 1 << 40, len }), None, None]);
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

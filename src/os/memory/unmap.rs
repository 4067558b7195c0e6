//! Unmaps large mappings in a separate thread: munmap(2) of a gigabyte of used pages takes about 10 ms, so a hundred
//! gigabytes would delay the thread that drops the last array.
//!
//! A child forked meanwhile inherits the mappings but not the threads. A list therefore records which memory is still
//! mapped. `fork` waits until it is accurate, and the child unmaps the listed memory.

use std::ops::Range;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::thread::Builder;

use memmap2::MmapRaw;

use crate::os::process::{fork, thread};

/// The thread that drops a smaller mapping unmaps it.
const ASIDE_BYTES: usize = 64 << 20;
/// Maximum number of mappings unmapped in the background. The thread that drops a further mapping unmaps it.
const MAX_PENDING: usize = 4;
/// Maximum number of bytes unmapped by one call, which limits the wait of a fork.
const PIECE_BYTES: usize = 1 << 30;

static PENDING: Mutex<Pending> = Mutex::new(Pending([const { None }; MAX_PENDING]));

/// Addresses still to be unmapped. The size is fixed because a child that was just forked must not allocate.
#[derive(Debug)]
pub struct Pending([Option<Range<usize>>; MAX_PENDING]);

/// Unmaps a mapping whose pages may have been used. A small one is unmapped at once.
pub fn unmap(mapping: MmapRaw) {
    if mapping.len() < ASIDE_BYTES {
        return;
    }
    let start = mapping.as_mut_ptr().expose_provenance();
    let Some(place) = lock().list(start..start + mapping.len()) else { return };
    std::mem::forget(mapping); // The list owns it now.
    let builder = Builder::new().name("pagestream-unmap".into());
    if thread::start(builder, move || while unmap_piece(place) {}).is_err() {
        lock().0[place].take().into_iter().for_each(unmap_now);
    }
}

/// Unmaps the next piece. Returns false if nothing was left.
fn unmap_piece(place: usize) -> bool {
    // No fork may come between the two steps: the child would never unmap the piece.
    let _section = fork::section();
    let piece = lock().take_piece(place);
    piece.map(unmap_now).is_some()
}

/// Locks the list. Callers hold the lock only briefly, because `fork` waits for it. They need no section, but may
/// be in one: some mappings are dropped in a section.
pub fn lock() -> MutexGuard<'static, Pending> {
    PENDING.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Pending {
    /// Unmaps all remaining memory. Called in a child that was just forked, because it has no thread for this.
    pub fn adopt(&mut self) {
        self.0.iter_mut().filter_map(Option::take).for_each(unmap_now);
    }

    /// Lists a mapping and returns its place, or `None` if the list is full.
    fn list(&mut self, mapping: Range<usize>) -> Option<usize> {
        let place = self.0.iter().position(Option::is_none)?;
        self.0[place] = Some(mapping);
        Some(place)
    }

    /// Takes a piece from the end, so that the rest stays one mapping.
    fn take_piece(&mut self, place: usize) -> Option<Range<usize>> {
        let mapped = self.0[place].take()?;
        let middle = mapped.start + mapped.len().saturating_sub(1) / PIECE_BYTES * PIECE_BYTES;
        self.0[place] = (middle > mapped.start).then_some(mapped.start..middle);
        Some(middle..mapped.end)
    }
}

fn unmap_now(addresses: Range<usize>) {
    let start = std::ptr::with_exposed_provenance_mut(addresses.start);
    // SAFETY: part of a mapping that `unmap` took over from its owner, and that left the list: no other thread unmaps
    // it, and no code still has its address.
    let unmapped = unsafe { rustix::mm::munmap(start, addresses.len()) };
    debug_assert_eq!(unmapped, Ok(()));
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pieces_cover_the_mapping_once_from_its_end() {
        for len in [1, PIECE_BYTES - 1, PIECE_BYTES, PIECE_BYTES + 1, 5 * PIECE_BYTES + 12_345] {
            let mut pending = Pending([None, Some(1 << 40..(1 << 40) + len), None, None]);
            let mut end = (1 << 40) + len;
            while let Some(piece) = pending.take_piece(1) {
                assert_eq!(piece.end, end);
                assert!((1..=PIECE_BYTES).contains(&piece.len()));
                assert_eq!(piece.start % PIECE_BYTES, 0);
                end = piece.start;
            }
            assert_eq!(end, 1 << 40);
            assert!(pending.0.iter().all(Option::is_none));
        }
    }
}

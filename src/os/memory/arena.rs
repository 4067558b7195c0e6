//! Memory of another owner, which lends ranges of it for filling.

use std::ops::Range;
use std::sync::{Arc, Mutex, PoisonError};

use super::parts::WritableMemory;
use crate::os::process::fork;

/// Memory whose ranges are never lent twice at the same time.
#[derive(Debug)]
pub struct Arena {
    memory: Box<dyn WritableMemory>,
    lent: Mutex<Vec<Range<usize>>>,
    /// After a fork, a thread of the parent may hold the lock. A child therefore does not touch it.
    process: u64,
}

/// A loan of a range. It keeps the arena alive, and gives the range back when dropped.
#[derive(Debug)]
pub struct Loan {
    arena: Arc<Arena>,
    range: Range<usize>,
}

impl Arena {
    pub fn new(memory: impl WritableMemory + 'static) -> Self {
        Self { memory: Box::new(memory), lent: Mutex::default(), process: fork::generation() }
    }

    pub fn len(&self) -> usize {
        self.memory.len()
    }

    /// Returns the offset of an address in the arena.
    pub fn offset_of(&self, address: *const u8) -> usize {
        address.addr() - self.memory.as_ptr().addr()
    }

    /// Lends a range, if it lies inside the arena and none of it is lent.
    pub fn lend(self: &Arc<Self>, range: Range<usize>) -> Option<Loan> {
        if range.start > range.end || range.end > self.len() || self.process != fork::generation() {
            return None;
        }
        let mut lent = self.lent.lock().unwrap_or_else(PoisonError::into_inner);
        let overlaps = |other: &Range<usize>| range.start < other.end && other.start < range.end;
        if !range.is_empty() && lent.iter().any(overlaps) {
            return None;
        }
        lent.push(range.clone());
        Some(Loan { arena: self.clone(), range })
    }
}

// SAFETY: the arena has exclusive use of the memory, and lends no byte of the range twice.
unsafe impl WritableMemory for Loan {
    fn as_ptr(&self) -> *mut u8 {
        self.arena.memory.as_ptr().wrapping_add(self.range.start)
    }

    fn len(&self) -> usize {
        self.range.len()
    }
}

impl Drop for Loan {
    fn drop(&mut self) {
        if self.arena.process == fork::generation() {
            let mut lent = self.arena.lent.lock().unwrap_or_else(PoisonError::into_inner);
            if let Some(place) = lent.iter().position(|other| *other == self.range) {
                lent.swap_remove(place);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::os::memory::anonymous::{Anonymous, HugePages};

    fn arena(len: usize) -> Arc<Arena> {
        Arc::new(Arena::new(Anonymous::private(len, HugePages::Never).expect("memory")))
    }

    #[test]
    fn a_range_is_lent_once_until_it_is_given_back() {
        let arena = arena(10_000);
        let first = arena.lend(100..200).expect("free");
        assert_eq!((first.len(), arena.offset_of(first.as_ptr())), (100, 100));
        assert!(arena.lend(199..300).is_none() && arena.lend(0..101).is_none());
        let beside = arena.lend(200..300).expect("free");
        drop(first);
        assert!(arena.lend(50..200).is_some());
        assert!(arena.lend(250..260).is_none());
        drop(beside);
    }

    #[test]
    fn ranges_outside_are_refused_and_empty_ones_take_nothing() {
        let arena = arena(100);
        assert!(arena.lend(50..101).is_none());
        let _all = arena.lend(0..100).expect("free");
        assert!(arena.lend(50..50).is_some());
    }
}

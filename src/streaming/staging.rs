//! Places the groups of a stream in memory from the caller: one after another, and from the start again when the end is
//! reached.

use std::ops::Range;
use std::sync::Arc;

use crate::error::{Error, Result};
use crate::os::memory::arena::{Arena, Loan};

use super::plan::{PAGE_BYTES, TensorGroup};

/// The caller's memory, and the place of each group in it.
#[derive(Debug)]
pub struct StagingPlaces {
    arena: Arc<Arena>,
    places: Vec<Range<usize>>,
}

impl StagingPlaces {
    pub fn new(arena: Arc<Arena>, groups: &[TensorGroup]) -> Result<Self> {
        let mut places: Vec<Range<usize>> = Vec::with_capacity(groups.len());
        for group in groups {
            let bytes = group.memory_bytes;
            if bytes > arena.len() {
                let advice = format!("staging has {} bytes, and {bytes} are needed at once", arena.len());
                return Err(Error::argument(advice));
            }
            let last_end = places.last().map_or(0, |last| last.end);
            let start = last_end.next_multiple_of(PAGE_BYTES as usize);
            let fits = start.checked_add(bytes).is_some_and(|end| end <= arena.len());
            let start = if fits { start } else { 0 };
            places.push(start..start + bytes);
        }
        Ok(Self { arena, places })
    }

    /// Lends a group its memory. Returns `None` while another loan overlaps it.
    pub fn lend(&self, group: usize) -> Option<Loan> {
        self.arena.lend(self.places.get(group)?.clone())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::os::memory::anonymous::{Anonymous, HugePages};

    fn group(memory_bytes: usize) -> TensorGroup {
        TensorGroup { file: 0, memory_bytes, pieces: Vec::new(), places: Vec::new() }
    }

    fn arena(len: usize) -> Arc<Arena> {
        Arc::new(Arena::new(Anonymous::private(len, HugePages::Never).expect("memory")))
    }

    #[test]
    fn groups_follow_each_other_and_begin_again_at_the_front() {
        let groups = [group(5000), group(4096), group(0), group(9000), group(4096)];
        let places = StagingPlaces::new(arena(20_000), &groups).expect("fits");
        assert_eq!(places.places, [0..5000, 8192..12_288, 12_288..12_288, 0..9000, 12_288..16_384]);
        let first = places.lend(0).expect("free");
        let second = places.lend(1).expect("free");
        assert!(places.lend(3).is_none());
        drop(first);
        assert!(places.lend(3).is_none(), "9000 bytes reach into the second group");
        drop(second);
        assert!(places.lend(3).is_some());
    }

    #[test]
    fn a_group_that_never_fits_is_refused() {
        let refused = StagingPlaces::new(arena(4096), &[group(4097)]).expect_err("too large");
        assert!(refused.to_string().contains("4097 are needed"), "{refused}");
    }
}

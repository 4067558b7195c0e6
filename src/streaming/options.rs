//! How a stream reads: its memory, its threads, and what it leaves in the page cache.

use crate::fetch::budget::default_memory_bytes;
use crate::fetch::crew::Limits;

use crate::words::words;

use crate::slicing::{PIECE_BYTES, Selection};

use super::plan::{Reads, Want};

/// Threads that read at first, and while storage is slow.
pub const READERS: Limits = Limits { first: 8, most: 64 };

words! {
    /// What reads do to the page cache.
    pub enum CacheUse as "cache_use" {
        /// They leave the bytes there.
        Fill = "fill",
        /// They leave there what was there before.
        DropBehind = "drop_behind",
        /// They go past it, where the file system has direct I/O. What does not leaves there what was there before.
        Bypass = "bypass",
    }
}

/// How a stream reads.
#[derive(Debug, Clone, Copy)]
pub struct StreamOptions {
    /// Bytes that are read, or wait for the consumer, at a time. One group is always read, whatever its size.
    pub memory_bytes: u64,
    /// The largest group that is read ahead. A larger one is read once the consumer waits for it: in limited memory there
    /// may be no room for three, the one in use, the one that is handed out, and the one behind it.
    pub largest_ahead_bytes: u64,
    pub readers: Limits,
    pub cache: CacheUse,
}

/// What a stream reads ahead if its caller names no budget, unless tensors are large: what storage of 1 GB/s with 125 ms
/// latency has on its way. More takes memory that nothing has used before, which costs time.
pub const USUAL_BYTES: u64 = 128 << 20;

/// Returns the budget of a stream whose caller names none: room for two of its largest tensors, so that reads go on while
/// one is complete.
pub fn memory_bytes_for(wants: &[Want]) -> u64 {
    let bytes_of = |want: &Want| want.part().map_or(want.len, |part| part.result_bytes);
    let largest_bytes = wants.iter().map(bytes_of).max().unwrap_or(0);
    largest_bytes.saturating_mul(2).max(USUAL_BYTES).min(default_memory_bytes())
}

impl CacheUse {
    /// Returns which bytes are read for a run.
    pub fn reads(self) -> Reads {
        if self == Self::Bypass { Reads::WholePages } else { Reads::Exact }
    }
}

impl StreamOptions {
    /// Returns how many threads read the wants. For a part that is no run of bytes a thread reads what lies between as well,
    /// and memory for that is part of the budget: half of it.
    pub fn readers_of(&self, wants: &[Want]) -> Limits {
        let Limits { first, most } = self.readers;
        if wants.iter().filter_map(Want::part).all(Selection::is_run) {
            return self.readers;
        }
        let threads = (self.memory_bytes / 2 / PIECE_BYTES).max(1) as usize;
        Limits { first: first.min(threads), most: most.min(threads) }
    }

    /// Returns the options of a stream of these wants that begins with less memory, and is given the rest later.
    #[must_use]
    pub fn beginning_with(self, first_bytes: u64, wants: &[Want]) -> Self {
        Self { memory_bytes: self.memory_bytes.min(first_bytes), readers: self.readers_of(wants), ..self }
    }
}

impl Default for StreamOptions {
    fn default() -> Self {
        let memory_bytes = default_memory_bytes();
        Self { memory_bytes, largest_ahead_bytes: u64::MAX, readers: READERS, cache: CacheUse::Fill }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_default_budget_has_room_for_two_of_the_largest_tensors() {
        let budget_for = |lens: &[u64]| {
            let want = |&len: &u64| Want { file: 0, offset: 0, len, selection: None };
            memory_bytes_for(&lens.iter().map(want).collect::<Vec<_>>())
        };
        let most = default_memory_bytes();
        assert_eq!(budget_for(&[]), USUAL_BYTES.min(most));
        assert_eq!(budget_for(&[1, 5 << 20]), USUAL_BYTES.min(most));
        assert_eq!(budget_for(&[1, 200 << 20, 3]), (400 << 20).min(most));
        assert_eq!(budget_for(&[u64::MAX]), most);
    }

    #[test]
    fn threads_that_read_around_parts_have_half_of_the_budget() {
        let options = StreamOptions { memory_bytes: 16 << 20, ..StreamOptions::default() };
        let want = |shape: &[u64], strides: &[i64]| {
            let selection = Selection::new(0, shape, strides, 1, 64).expect("inside");
            [Want { file: 0, offset: 0, len: 64, selection: Some(selection) }]
        };
        assert_eq!(options.readers_of(&want(&[8], &[1])), READERS);
        assert_eq!(options.readers_of(&want(&[8, 4], &[8, 1])), Limits { first: 8, most: 8 });
        let little = StreamOptions { memory_bytes: 1, ..options };
        assert_eq!(little.readers_of(&want(&[8, 4], &[8, 1])), Limits { first: 1, most: 1 });
    }
}

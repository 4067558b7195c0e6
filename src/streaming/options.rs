//! The options of a stream: memory, threads and effect on the page cache.

use crate::fetch::budget::default_memory_bytes;
use crate::fetch::crew::Limits;

use crate::words::words;

use crate::slicing::{PIECE_BYTES, Selection};

use super::plan::{Reads, Want};

/// Number of threads at the start, and while storage is slow.
pub const READERS: Limits = Limits { first: 8, most: 64 };

words! {
    /// The effect of reads on the page cache.
    pub enum CacheUse as "cache_use" {
        /// Reads leave their bytes in the page cache.
        Fill = "fill",
        /// Reads drop the pages that they brought in, and keep pages that were cached before.
        DropBehind = "drop_behind",
        /// Reads go past the page cache if the file system supports direct I/O. Otherwise as `DropBehind`.
        Bypass = "bypass",
    }
}

/// The options of a stream.
#[derive(Debug, Clone, Copy)]
pub struct StreamOptions {
    /// Limit on bytes that are being read or wait for the program. A group larger than this is read alone.
    pub memory_bytes: u64,
    /// The largest group that is read ahead. A larger group is read once the program waits for it, because limited
    /// memory may not hold three of them: the one in use, the one being handed out and the next one.
    pub largest_ahead_bytes: u64,
    pub readers: Limits,
    pub cache: CacheUse,
}

/// Usual budget of a stream whose caller names none, unless its tensors are large. Storage with 1 GB/s and a latency of
/// 125 ms has about this much in flight. A larger budget would take fresh memory, which costs time.
pub const USUAL_BYTES: u64 = 128 << 20;

/// Returns the budget of a stream whose caller names none. It has room for two of the largest tensors, so that reads
/// continue while one of them waits for the program.
pub fn memory_bytes_for(wants: &[Want]) -> u64 {
    let bytes_of = |want: &Want| want.part().map_or(want.len, |part| part.result_bytes);
    let largest_bytes = wants.iter().map(bytes_of).max().unwrap_or(0);
    largest_bytes.saturating_mul(2).max(USUAL_BYTES).min(default_memory_bytes())
}

impl CacheUse {
    /// Returns which bytes to read for a run.
    pub fn reads(self) -> Reads {
        if self == Self::Bypass { Reads::WholePages } else { Reads::Exact }
    }
}

impl StreamOptions {
    /// Returns how many threads read the wants. For a part that is not one run of bytes, a thread also reads the gaps.
    /// Memory for the gaps comes out of the budget: half of it.
    pub fn readers_of(&self, wants: &[Want]) -> Limits {
        let Limits { first, most } = self.readers;
        if wants.iter().filter_map(Want::part).all(Selection::is_run) {
            return self.readers;
        }
        let threads = (self.memory_bytes / 2 / PIECE_BYTES).max(1) as usize;
        Limits { first: first.min(threads), most: most.min(threads) }
    }

    /// Returns options for a stream that starts with `first_bytes` of memory and gets the rest later.
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

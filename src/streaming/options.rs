//! How a stream reads: its memory, its threads, and what it leaves in the page cache.

use crate::fetch::budget::default_memory_bytes;
use crate::fetch::crew::Limits;

use crate::words::words;

use super::plan::Reads;

/// Threads that read at first, and while storage is slow.
pub const READERS: Limits = Limits { first: 4, most: 64 };

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
    pub readers: Limits,
    pub cache: CacheUse,
}

impl CacheUse {
    /// Returns which bytes are read for a run.
    pub fn reads(self) -> Reads {
        if self == Self::Bypass { Reads::WholePages } else { Reads::Exact }
    }
}

impl Default for StreamOptions {
    fn default() -> Self {
        Self { memory_bytes: default_memory_bytes(), readers: READERS, cache: CacheUse::Fill }
    }
}

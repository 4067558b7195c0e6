//! Options of a stream of batches.

use crate::error::Result;
use crate::fetch::crew::check_threads;
use crate::mapped_file::DropBehind;
use crate::widen::Element;

/// The token that tells documents apart.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Marker {
    /// Each document ends with this id.
    End(u64),
    /// Each document begins with this id.
    Begin(u64),
}

/// How batches tell their documents apart.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Documents {
    Ignore,
    /// By the files' own records.
    Recorded,
    /// By a token of each document. Records are not consulted.
    Marked(Marker),
}

#[derive(Debug, Clone)]
pub struct Options {
    pub element: Element,
    pub documents: Documents,
    /// Number of ids that tokens may have; a greater or a negative one is an error. `None` for any.
    pub vocabulary: Option<u64>,
    /// Gathering threads; `None` adapts.
    pub threads: Option<usize>,
    /// Batches requested ahead; `None` adapts.
    pub lookahead: Option<usize>,
    /// Bytes for buffers and for pages requested ahead; `None` for a share of the available memory.
    pub memory_bytes: Option<u64>,
    pub drop_behind: Option<DropBehind>,
    /// Number of buffers that a consumer can hold, beyond those in the ring, which still return to the pool and
    /// not to the system.
    pub spare_buffers: u64,
    #[doc(hidden)]
    pub without: Without,
}

/// Mechanisms that `benches/rust/ablation.rs` switches off, one at a time. All are on otherwise.
#[doc(hidden)]
#[derive(Debug, Clone, Copy, Default)]
#[expect(clippy::struct_excessive_bools, reason = "each is a switch of its own")]
pub struct Without {
    /// The consumer fills a chunk itself where it would have to wait for a gatherer.
    pub helping: bool,
    /// More gatherers while storage is slow.
    pub extra_gatherers: bool,
    /// Doubling of lookahead and ring, and their reset once the cache is warm.
    pub adapting: bool,
    /// Trust in a warm cache.
    pub trust: bool,
    /// Prefetching of the next rows into the processor's cache.
    pub prefetch: bool,
    /// Chunks of one row while storage is slow.
    pub small_chunks: bool,
}

impl Options {
    pub(super) fn checked(self) -> Result<Self> {
        self.threads.map_or(Ok(()), check_threads)?;
        Ok(self)
    }
}

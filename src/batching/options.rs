//! Options of a stream of batches.

use crate::error::Result;
use crate::fetch::crew::check_threads;
use crate::mapped_file::DropBehind;
use crate::widen::Element;

/// The token that delimits documents.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Marker {
    /// Each document ends with this id.
    End(u64),
    /// Each document begins with this id.
    Begin(u64),
}

/// The way to find the documents in batches.
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
    /// Number of valid ids; a greater or a negative id is an error. `None` allows any id.
    pub vocabulary: Option<u64>,
    /// Number of gathering threads; `None` adapts.
    pub threads: Option<usize>,
    /// Number of batches requested ahead; `None` adapts.
    pub lookahead: Option<usize>,
    /// Bytes for buffers and for pages requested ahead; `None` for a share of the available memory.
    pub memory_bytes: Option<u64>,
    pub drop_behind: Option<DropBehind>,
    /// Number of buffers that a consumer can hold besides those in the ring. Up to this number, they return to the pool
    /// and not to the system.
    pub spare_buffers: u64,
    #[doc(hidden)]
    pub without: Without,
}

/// Mechanisms that `benches/rust/ablation.rs` switches off, one at a time. Otherwise all of them are on.
#[doc(hidden)]
#[derive(Debug, Clone, Copy, Default)]
#[expect(clippy::struct_excessive_bools, reason = "each is a switch of its own")]
pub struct Without {
    /// The consumer fills a chunk itself when it would have to wait for a gatherer.
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

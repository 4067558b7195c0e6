//! The capacity of a stream: batches requested ahead, buffers, threads.

use crate::fetch::budget::{Budget, default_memory_bytes};
use crate::fetch::crew::Limits;
use crate::mapped_file::Mode;

use super::layout::BatchLayout;
use super::options::Options;
use super::plan::Feed;

/// Initial number of windows requested ahead. With 256 in flight a disk reads as fast as with direct readers at queue
/// depth 64; with 16 it reaches 0.7 to 0.8 of that.
const FIRST_LOOKAHEAD_WINDOWS: usize = 256;
/// Gathering threads for mapped files. The first number is the initial one, limited to one less than the number of
/// cores, because the consumer needs one. The second is the maximum: pages are fetched ahead, so more threads would not
/// fetch more.
const FIRST_GATHERERS: usize = 4;
const MAX_GATHERERS: usize = 8;
/// Gathering threads for files that are read without a mapping: initially, and at most. Each waits for one read.
const FIRST_READERS: usize = 16;
const MAX_READERS: usize = 64;
const FIRST_RING: u64 = 4;
const MAX_RING: u64 = 64;
/// More buffers than this help no consumer: the page cache makes better use of the memory.
const MAX_RING_BYTES: u64 = 32 << 20;
const MAX_LOOKAHEAD: u64 = 4096;
/// Bandwidth-delay product of 1 GB/s storage with 125 ms latency.
const MAX_AHEAD_BYTES: u64 = 128 << 20;
/// Maximum number of windows that the blocked order plans together.
const MAX_GROUP_WINDOWS: u64 = 1 << 20;

#[derive(Debug, Clone, Copy)]
pub(super) struct Sizes {
    /// Number of batches whose pages are requested ahead.
    pub lookahead: Budget,
    /// Number of batches that are being filled or are full.
    pub ring: Budget,
    pub gatherers: Limits,
    /// Maximum number of batches that the blocked order plans together.
    pub max_group_batches: usize,
}

impl Sizes {
    pub fn new(feed: &Feed, options: &Options, layout: &BatchLayout) -> Self {
        let budget = options.memory_bytes.unwrap_or_else(default_memory_bytes);
        // If the first file is not mapped, the other files usually are not either.
        let is_unmapped = feed.sources.iter().any(|source| source.corpus.facts(0).mode == Mode::Read);
        let rows = (layout.rows as u64).max(1);
        // Half of the budget is for pages, and half for buffers.
        let fitting = |most: u64, each: u64| most.min(budget / 2) / each.max(1);
        let ahead_bytes = layout.ahead_bytes;
        let buffer_bytes = layout.buffer_bytes as u64;
        let fitting_buffers = fitting(u64::MAX, buffer_bytes).max(2);
        let max_ring = fitting(MAX_RING_BYTES, buffer_bytes).clamp(FIRST_RING, MAX_RING).min(fitting_buffers);
        let max_lookahead = fitting(MAX_AHEAD_BYTES, ahead_bytes).clamp(2, MAX_LOOKAHEAD);
        let (lookahead, ring) = match options.lookahead.map(|given| given as u64) {
            None => {
                let first = (FIRST_LOOKAHEAD_WINDOWS as u64).div_ceil(rows).clamp(2, max_lookahead);
                (Budget::new(first, max_lookahead), Budget::new(FIRST_RING.min(max_ring), max_ring))
            }
            Some(given) => {
                let pages = given.clamp(1, fitting(u64::MAX, ahead_bytes).clamp(1, MAX_LOOKAHEAD));
                // If nothing is mapped, reading ahead means filling buffers ahead.
                let most =
                    if is_unmapped { fitting_buffers.min(MAX_LOOKAHEAD) } else { FIRST_RING.min(max_ring) };
                let buffers = given.clamp(1, most);
                (Budget::new(pages, pages), Budget::new(buffers, buffers))
            }
        };
        let (first, most) = match options.threads {
            Some(given) => (given, given),
            None if is_unmapped => (FIRST_READERS, MAX_READERS),
            None => (cores().saturating_sub(1).clamp(1, FIRST_GATHERERS), MAX_GATHERERS),
        };
        let most = if options.without.extra_gatherers { first } else { most };
        Self {
            lookahead,
            ring,
            gatherers: Limits { first, most },
            max_group_batches: (budget / 4 / ahead_bytes.max(1)).min(MAX_GROUP_WINDOWS / rows).max(1)
                as usize,
        }
    }
}

fn cores() -> usize {
    std::thread::available_parallelism().map_or(1, std::num::NonZero::get)
}

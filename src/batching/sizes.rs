//! How much a stream keeps on the way: batches asked for ahead, buffers, threads.

use crate::os::memory;
use crate::os::process::limits;

use super::lookahead::PageRange;
use super::pipeline::Options;
use super::plan::{BatchRow, Feed};
use super::threads::Length;

/// Windows that are asked for ahead from the first: with 256 on the way a disk reads at the rate of direct
/// readers at queue depth 64, with 16 at 0.7 to 0.8 of it.
const FIRST_LOOKAHEAD_WINDOWS: usize = 256;
/// Gathering threads where files are mapped: at first, or a core less than there are, as that is the
/// consumer's; and at most. Their pages are fetched ahead: more threads would not fetch more.
const FIRST_GATHERERS: usize = 4;
const MAX_GATHERERS: usize = 8;
/// Where files are read without a mapping: at first, and at most. Each of them waits for one read.
const FIRST_READERS: usize = 16;
const MAX_READERS: usize = 64;
const FIRST_RING: usize = 4;
const MAX_RING: usize = 64;
/// Buffers beyond this serve nobody: the memory is better left to the page cache.
const MAX_RING_BYTES: u64 = 32 << 20;
const MAX_LOOKAHEAD: usize = 4096;
/// Storage of 1 GB/s that takes an eighth of a second to answer needs as much on the way.
const MAX_AHEAD_BYTES: u64 = 128 << 20;
/// In the blocked order: windows that are worked out together, at most.
const MAX_BLOCK_WINDOWS: usize = 1 << 20;
/// Without a budget given: this share of the memory that is available, and no more than the second.
const MEMORY_SHARE: u64 = 8;
const MEMORY_BYTES: u64 = 1 << 30;

#[derive(Debug, Clone, Copy)]
pub(super) struct Sizes {
    /// Batches whose pages are asked for ahead.
    pub lookahead: Length,
    /// Batches that are being filled or are full.
    pub ring: Length,
    pub first_gatherers: usize,
    /// Where the number of gathering threads adapts.
    pub max_gatherers: usize,
    /// Batches that the blocked order works out together, at most.
    pub max_block_batches: usize,
}

impl Sizes {
    pub fn new(feed: &Feed, options: &Options, buffer_bytes: u64) -> Self {
        let budget = options.memory_bytes.unwrap_or_else(default_memory_bytes);
        let windows_bytes = ahead_bytes(feed);
        let rows = feed.share().batch_size.max(1) as usize;
        // Half of the budget is for pages, half for buffers.
        let fitting = |most: u64, each: u64| (most.min(budget / 2) / each.max(1)) as usize;
        let max_ring = fitting(MAX_RING_BYTES, buffer_bytes).clamp(FIRST_RING, MAX_RING);
        let max_ring = max_ring.min(fitting(u64::MAX, buffer_bytes).max(2));
        let max_lookahead = fitting(MAX_AHEAD_BYTES, windows_bytes).clamp(2, MAX_LOOKAHEAD);
        let first_lookahead = match options.lookahead {
            Some(given) => given.clamp(1, fitting(u64::MAX, windows_bytes).clamp(1, MAX_LOOKAHEAD)),
            None => FIRST_LOOKAHEAD_WINDOWS.div_ceil(rows).clamp(2, max_lookahead),
        };
        let is_unmapped = feed.is_read_without_mapping();
        let (first_ring, max_ring) = match options.lookahead {
            // The kernel is not asked for anything: reading ahead is filling buffers ahead.
            Some(given) if is_unmapped => {
                let given = given.clamp(1, fitting(u64::MAX, buffer_bytes).clamp(2, MAX_LOOKAHEAD));
                (given, given)
            }
            given => (given.map_or(FIRST_RING, |given| given.clamp(1, FIRST_RING)).min(max_ring), max_ring),
        };
        let (first_gatherers, max_gatherers) = if is_unmapped {
            (FIRST_READERS, MAX_READERS)
        } else {
            (cores().saturating_sub(1).clamp(1, FIRST_GATHERERS), MAX_GATHERERS)
        };
        Self {
            lookahead: Length::new(first_lookahead, max_lookahead),
            ring: Length::new(first_ring, max_ring),
            first_gatherers: options.threads.unwrap_or(first_gatherers),
            max_gatherers,
            max_block_batches: ((budget / 4 / windows_bytes.max(1)) as usize)
                .min(MAX_BLOCK_WINDOWS / rows)
                .max(1),
        }
    }
}

/// Cached bytes that one batch's windows need, and what is noted of them.
fn ahead_bytes(feed: &Feed) -> u64 {
    let page = memory::page_bytes() as u64;
    let noted = (size_of::<BatchRow>() + size_of::<PageRange>()) as u64;
    let window = feed.sources().iter().map(|source| {
        source
            .windows
            .sequence_length()
            .saturating_mul(source.corpus.item_bytes())
            .saturating_add(page + noted)
    });
    window.max().unwrap_or(page).saturating_mul(feed.share().batch_size)
}

fn default_memory_bytes() -> u64 {
    (limits::available_memory_bytes() / MEMORY_SHARE).min(MEMORY_BYTES)
}

fn cores() -> usize {
    std::thread::available_parallelism().map_or(1, std::num::NonZero::get)
}

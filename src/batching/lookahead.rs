//! Fetching what a batch will need before it needs it: exact pages, in order, merged, each once.

use std::sync::atomic::{AtomicBool, Ordering};

use crate::error::Result;
use crate::mapped_file::Mode;
use crate::os;

use super::metrics::Metrics;
use super::plan::{BatchRow, Feed, room_for};

/// A cache that has held this many ranges in a row is taken for warm: then one range a batch is looked
/// up instead of all, until one is missing.
const WARM_AFTER_RANGES: u32 = 256;

/// Rows of a chunk that are looked up before the consumer gathers it itself. All of them would take a fifth
/// as long as gathering.
const SAMPLED_ROWS: usize = 16;

/// Whole pages of one file, in bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct PageRange {
    pub source: usize,
    pub shard: usize,
    pub start: u64,
    pub stop: u64,
}

#[derive(Debug, Default)]
pub struct Lookahead {
    resident_in_a_row: u32,
    /// Ranges that are looked up although the cache is taken for warm, as a gatherer had to wait: perhaps
    /// for something else.
    doubted: u32,
    /// The last range asked for: a sequential stream goes on in the page in which it stopped.
    last: Option<PageRange>,
}

/// The pages that rows lie on, sorted, without overlap.
pub fn page_ranges<'a>(feed: &Feed, rows: impl IntoIterator<Item = &'a BatchRow>) -> Result<Vec<PageRange>> {
    let page = os::memory::page_bytes() as u64;
    let rows = rows.into_iter();
    let mut ranges = room_for(rows.size_hint().0)?;
    for row in rows {
        let corpus = &feed.sources()[row.source].corpus;
        for piece in corpus.pieces(row.start, row.stop)? {
            let (offset, length) = corpus.byte_range(piece);
            let (start, stop) = (offset - offset % page, (offset + length).next_multiple_of(page));
            ranges.push(PageRange { source: row.source, shard: piece.shard, start, stop });
        }
    }
    ranges.sort_unstable();
    ranges.dedup_by(|next, kept| {
        let joined = (next.source, next.shard) == (kept.source, kept.shard) && next.start <= kept.stop;
        if joined {
            kept.stop = kept.stop.max(next.stop);
        }
        joined
    });
    Ok(ranges)
}

/// Whether what rows need is known to be in the page cache, as far as a few of them tell: storage that has
/// stalled keeps back more than one.
pub(super) fn is_resident(feed: &Feed, rows: &[BatchRow]) -> bool {
    rows.iter().step_by(rows.len().div_ceil(SAMPLED_ROWS).max(1)).all(|row| {
        let corpus = &feed.sources()[row.source].corpus;
        corpus.pieces(row.start, row.stop).is_ok_and(|mut pieces| {
            pieces.all(|piece| {
                let (offset, length) = corpus.byte_range(piece);
                let opened = corpus.opened(piece.shard);
                opened.is_ok_and(|opened| opened.is_resident(offset, length) == Some(true))
            })
        })
    })
}

impl Lookahead {
    /// Asks the kernel for the ranges of a batch. `fetched_late` is set by gathering threads that had to
    /// wait: then perhaps the cache is not warm after all.
    pub fn fetch(
        &mut self,
        feed: &Feed,
        ranges: &[PageRange],
        fetched_late: &AtomicBool,
        metrics: &Metrics,
    ) -> Result<()> {
        if fetched_late.swap(false, Ordering::Relaxed) {
            self.doubted = WARM_AFTER_RANGES;
        }
        let trusted = self.is_warm() && self.doubted == 0;
        for range in ranges.iter().take(if trusted { 1 } else { usize::MAX }) {
            self.doubted = self.doubted.saturating_sub(1);
            let Some(range) = self.without_last(*range) else { continue };
            let corpus = &feed.sources()[range.source].corpus;
            let opened = corpus.opened(range.shard)?;
            let stop = range.stop.min(opened.size());
            let length = stop.saturating_sub(range.start);
            if opened.facts().mode == Mode::Read {
                // Gathering threads read such files concurrently; there is nothing to ask the kernel for.
            } else if opened.is_resident(range.start, length) == Some(true) {
                self.resident_in_a_row = self.resident_in_a_row.saturating_add(1);
                Metrics::add(&metrics.already_cached, 1);
            } else {
                self.resident_in_a_row = 0;
                opened.fetch_ahead(range.start, length);
                Metrics::add(&metrics.bytes_read, length);
            }
        }
        self.last = ranges.last().copied();
        Ok(())
    }

    /// Whether the cache has held everything for long.
    pub fn is_warm(&self) -> bool {
        self.resident_in_a_row >= WARM_AFTER_RANGES
    }

    /// What of a range was not asked for at the end of the batch before.
    fn without_last(&self, range: PageRange) -> Option<PageRange> {
        match self.last {
            Some(last)
                if (last.source, last.shard) == (range.source, range.shard)
                    && (last.start..last.stop).contains(&range.start) =>
            {
                (last.stop < range.stop).then_some(PageRange { start: last.stop, ..range })
            }
            _ => Some(range),
        }
    }
}

//! Finds the windows of each batch of one rank: a position in the stream gives token ranges, and token ranges give
//! pages of files.

use std::sync::Arc;

use crate::allocate;
use crate::error::{Error, Result};
use crate::fetch::ranges::{ByteRange, FileId, MergeRule};
use crate::mapped_file::{Opened, page_cache};
use crate::os::memory;
use crate::sampling::mixture::Mixture;
use crate::sampling::order::Order;
use crate::sampling::schedule::{self, Draw, Schedule};
use crate::tokens::corpus::TokenCorpus;
use crate::tokens::windows::Windows;

/// The purpose of memory for lists of windows, whose number can reach millions per batch.
pub(super) const PLAN: &str = "the plan of a batch, which grows with batch_size";

/// A corpus and its windows.
#[derive(Debug, Clone)]
pub struct TokenSource {
    pub corpus: Arc<TokenCorpus>,
    pub windows: Windows,
}

/// The share of this process in each global batch.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Share {
    pub rank: u64,
    pub world_size: u64,
    /// Number of windows of one rank in a full batch.
    pub batch_size: u64,
}

/// The end of the stream.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct StreamExtent {
    /// The position behind its last sample; `None` for an endless stream.
    pub end: Option<u64>,
    /// Whether a short last global batch is dropped.
    pub drop_last: bool,
}

/// Maximum `batch_size`: more windows would need too much memory for their numbers alone.
const MAX_BATCH_WINDOWS: u64 = 1 << 24;

#[derive(Debug)]
pub struct Feed {
    pub sources: Vec<TokenSource>,
    pub schedule: Schedule,
    pub share: Share,
    extent: StreamExtent,
}

/// A row of a batch.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct BatchRow {
    pub source: usize,
    /// The epoch of the source.
    pub epoch: u64,
    /// The token range in the corpus, including targets.
    pub start: u64,
    pub stop: u64,
}

/// A batch of this rank.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct BatchPlan {
    /// Number of samples of the stream before the global batch that contains this batch.
    pub position: u64,
    /// Number of windows in the global batch, over all ranks.
    pub global_rows: u64,
    pub rows: Vec<BatchRow>,
}

impl Feed {
    pub fn new(
        sources: Vec<TokenSource>,
        mixture: Option<Arc<Mixture>>,
        order: Order,
        seed: u64,
        share: Share,
        extent: StreamExtent,
    ) -> Result<Self> {
        if share.world_size == 0 || share.batch_size == 0 || share.rank >= share.world_size {
            return Err(Error::argument(format!(
                "rank is {}, world_size {} and batch_size {}; rank must be less than world_size, and batch_size at least 1",
                share.rank, share.world_size, share.batch_size
            )));
        }
        if share.batch_size > MAX_BATCH_WINDOWS {
            let detail =
                format!("batch_size is {}; it must be at most {MAX_BATCH_WINDOWS}", share.batch_size);
            return Err(Error::argument(detail));
        }
        let global = share.batch_size.checked_mul(share.world_size);
        if global.is_none_or(|rows| rows > 1 << 32) {
            return Err(Error::argument("a global batch has at most 2^32 windows"));
        }
        let counts = sources.iter().map(|source| {
            let starts = source.windows.starts().unwrap_or(u64::MAX);
            schedule::SourceSize { windows: source.windows.count(), starts }
        });
        let schedule = Schedule::new(counts.collect(), mixture, order, seed)?;
        Ok(Self { sources, schedule, share, extent })
    }

    /// Returns this rank's part of the global batch at `position`, or `None` at the end of the stream.
    pub fn plan(&self, position: u64) -> Result<Option<BatchPlan>> {
        let Share { rank, world_size, .. } = self.share;
        let global_rows = self.global_rows(position);
        if global_rows == 0 {
            return Ok(None);
        }
        let end = position.checked_add(global_rows);
        end.ok_or_else(|| Error::argument("the stream is over after 2^64 samples"))?;
        // In a short batch, the numbers of rows of two ranks differ by at most one.
        let (each, more) = (global_rows / world_size, global_rows % world_size);
        let first = rank * each + rank.min(more);
        let count = each + u64::from(rank < more);
        let draws = self.schedule.batch(position, global_rows, first..first + count)?;
        let mut rows = allocate::vec(draws.len(), PLAN)?;
        for draw in &draws {
            rows.push(self.row(draw)?);
        }
        Ok(Some(BatchPlan { position, global_rows, rows }))
    }

    /// Returns the number of windows in the global batch at `position`, or 0 at the end of the stream or if the rest is
    /// dropped.
    fn global_rows(&self, position: u64) -> u64 {
        let full = self.share.batch_size * self.share.world_size;
        let left = self.extent.end.map_or(full, |end| end.saturating_sub(position));
        if left < full && self.extent.drop_last { 0 } else { full.min(left) }
    }

    /// Returns the position once a batch is consumed. If no batch follows, it is the end of the stream: dropped samples
    /// count as consumed.
    pub fn position_after(&self, plan: &BatchPlan) -> u64 {
        let after = plan.position + plan.global_rows;
        self.extent.end.filter(|_| self.global_rows(after) == 0).unwrap_or(after)
    }

    /// Returns the pages of rows, in order of file and offset, without overlap.
    pub fn page_ranges<'a>(&self, rows: impl IntoIterator<Item = &'a BatchRow>) -> Result<Vec<ByteRange>> {
        let page = memory::page_bytes() as u64;
        let rows = rows.into_iter();
        let mut ranges = allocate::vec(rows.size_hint().0, PLAN)?;
        for row in rows {
            for range in self.byte_ranges(row)? {
                let range = range?;
                let offset = range.offset - range.offset % page;
                let len = range.end().next_multiple_of(page) - offset;
                allocate::push(&mut ranges, ByteRange { offset, len, ..range }, PLAN)?;
            }
        }
        ranges.sort_unstable();
        ranges.dedup_by(|next, last| {
            let joined = MergeRule::TOUCHING.join(*last, *next);
            *last = joined.unwrap_or(*last);
            joined.is_some()
        });
        Ok(ranges)
    }

    /// Returns the byte ranges of a row, file by file.
    fn byte_ranges(&self, row: &BatchRow) -> Result<impl Iterator<Item = Result<ByteRange>>> {
        let (set, corpus) = (row.source, &self.sources[row.source].corpus);
        Ok(corpus.pieces(row.start, row.stop)?.map(move |piece| {
            let piece = piece?;
            let (offset, len) = corpus.byte_range(piece);
            Ok(ByteRange { file: FileId { set, index: piece.shard }, offset, len })
        }))
    }

    /// Returns whether a row is known to be in the page cache.
    pub fn is_resident(&self, row: &BatchRow) -> bool {
        let is_cached = |range: ByteRange| {
            let opened = self.open(range.file);
            opened.is_ok_and(|opened| page_cache::is_resident(&opened, range.offset, range.len) == Some(true))
        };
        self.byte_ranges(row).is_ok_and(|mut ranges| ranges.all(|range| range.is_ok_and(is_cached)))
    }

    pub fn open(&self, file: FileId) -> Result<Arc<Opened>> {
        self.sources[file.set].corpus.opened(file.index)
    }

    fn row(&self, draw: &Draw) -> Result<BatchRow> {
        let windows = &self.sources[draw.source].windows;
        let (start, stop) = match self.schedule.order {
            Order::Random => windows.tokens_from(draw.index)?,
            _ => windows.tokens(draw.index)?,
        };
        Ok(BatchRow { source: draw.source, epoch: draw.epoch, start, stop })
    }
}

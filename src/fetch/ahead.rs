//! Asks the kernel for bytes before they are used.

use std::ops::Deref;

use crate::error::Result;
use crate::mapped_file::{
    Mode, Opened, ResidentPages,
    page_cache::{self, Prefetcher},
};

use super::ranges::{ByteRange, FileId};

/// Number of consecutive cached ranges after which we trust the cache.
const TRUST_AFTER_RANGES: u32 = 256;

/// Ranges with no larger gaps than this are looked up together.
const NEAR_BYTES: u64 = 128 << 10;

/// Asks for ranges ahead of their use, and knows whether the cache is warm.
#[derive(Debug, Default)]
pub struct Ahead {
    cached_in_a_row: u32,
    /// The last range of the previous batch. A sequential stream continues in the page where that range ends.
    last: Option<ByteRange>,
    /// Whether to look up every range. Benchmarks set it.
    pub looks_at_all: bool,
    /// Sends the requests, for a single file whose mapped pages are in use meanwhile.
    pub prefetcher: Option<Prefetcher>,
}

/// The result for a batch of ranges.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
pub struct Lot {
    /// Number of ranges that were found in the page cache.
    pub cached: u64,
    /// Number of bytes that the kernel was asked for.
    pub asked_bytes: u64,
    /// Whether the whole batch is in the page cache, as far as it was looked up.
    pub is_cached: bool,
}

impl Ahead {
    /// Asks for the ranges of a batch that are not in the page cache. `open` returns the file of a range.
    ///
    /// Files in `read` mode are skipped: their readers use no mapping, and wait in parallel instead.
    pub fn ask<O: Deref<Target = Opened>>(
        &mut self,
        ranges: &[ByteRange],
        open: impl Fn(FileId) -> Result<O>,
    ) -> Result<Lot> {
        let mut lot = Lot { is_cached: true, ..Lot::default() };
        // Probe the last range, because a partly read file is warm up to some position.
        let probe = ranges.last().filter(|_| self.is_trusted());
        if let Some(range) = probe
            && is_resident(&*open(range.file)?, *range)
        {
            self.note_cached(&mut lot);
            self.last = Some(*range);
            return Ok(lot);
        }
        let mut rest = ranges;
        while let Some(first) = rest.first() {
            let opened = open(first.file)?;
            let is_near = |pair: &[ByteRange]| {
                pair[0].file == pair[1].file && pair[1].offset.saturating_sub(pair[0].end()) <= NEAR_BYTES
            };
            let (now, later) = rest.split_at(1 + rest.windows(2).take_while(|pair| is_near(pair)).count());
            let len = now.last().map_or(0, |last| last.end().min(opened.size()).saturating_sub(first.offset));
            let pages =
                if now.len() > 1 { page_cache::resident_pages(&opened, first.offset, len) } else { None };
            for range in now {
                self.ask_for(*range, &opened, pages.as_ref(), &mut lot);
            }
            rest = later;
        }
        self.last = ranges.last().copied();
        Ok(lot)
    }

    /// Asks for the part of a range that is not cached and was not requested with the previous batch.
    fn ask_for(&mut self, range: ByteRange, opened: &Opened, pages: Option<&ResidentPages>, lot: &mut Lot) {
        let Some(range) = self.without_last(range) else { return };
        if opened.facts.mode == Mode::Read {
            lot.is_cached = false;
            return;
        }
        let len = range.end().min(opened.size()).saturating_sub(range.offset);
        if self.prefetcher.as_ref().is_some_and(|prefetcher| prefetcher.has_asked(range.offset, len)) {
            lot.is_cached = false;
            return;
        }
        if pages.map_or_else(|| is_resident(opened, range), |pages| pages.contain(range.offset, len)) {
            self.note_cached(lot);
        } else {
            lot.is_cached = false;
            self.cached_in_a_row = 0;
            match &mut self.prefetcher {
                Some(prefetcher) => prefetcher.fetch(range.offset, len),
                None => page_cache::fetch_ahead(opened, range.offset, len),
            }
            lot.asked_bytes += len;
        }
    }

    fn note_cached(&mut self, lot: &mut Lot) {
        self.cached_in_a_row = self.cached_in_a_row.saturating_add(1);
        lot.cached += 1;
    }

    /// Returns whether every recent range was cached.
    pub fn is_warm(&self) -> bool {
        self.cached_in_a_row >= TRUST_AFTER_RANGES
    }

    fn is_trusted(&self) -> bool {
        self.is_warm() && !self.looks_at_all
    }

    /// Returns the part of a range that the previous batch did not ask for.
    fn without_last(&self, range: ByteRange) -> Option<ByteRange> {
        match self.last {
            Some(last) if last.file == range.file && (last.offset..last.end()).contains(&range.offset) => {
                let offset = last.end();
                (offset < range.end()).then(|| ByteRange { offset, len: range.end() - offset, ..range })
            }
            _ => Some(range),
        }
    }
}

fn is_resident(opened: &Opened, range: ByteRange) -> bool {
    let len = range.end().min(opened.size()).saturating_sub(range.offset);
    page_cache::is_resident(opened, range.offset, len) == Some(true)
}

//! Asking the kernel for bytes before they are used.

use std::ops::Deref;

use crate::error::Result;
use crate::mapped_file::{Mode, Opened};

use super::ranges::{ByteRange, FileId};

/// After this many cached ranges in a row the cache is trusted.
const TRUST_AFTER_RANGES: u32 = 256;

/// Asks for ranges ahead of their use, and knows whether the cache is warm.
#[derive(Debug, Default)]
pub struct Ahead {
    cached_in_a_row: u32,
    /// Ranges that are looked up although the cache is trusted.
    doubted: u32,
    /// The last range of the lot before. A sequential stream goes on in the page in which that one ends.
    last: Option<ByteRange>,
    /// Whether every range is looked up. Benchmarks set it.
    pub looks_at_all: bool,
}

/// What became of a lot of ranges.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
pub struct Lot {
    /// Ranges that were looked up and found in the page cache.
    pub cached: u64,
    /// Bytes that the kernel was asked for.
    pub asked_bytes: u64,
    /// Whether the whole lot is in the page cache, as far as that was looked up.
    pub is_cached: bool,
}

impl Ahead {
    /// Asks for those of a lot of ranges that are not in the page cache. `open` gives the file of a range.
    ///
    /// Files in `read` mode are left out: their readers do not go through a mapping, and wait side by side instead.
    pub fn ask<O: Deref<Target = Opened>>(
        &mut self,
        ranges: &[ByteRange],
        open: impl Fn(FileId) -> Result<O>,
    ) -> Result<Lot> {
        let mut lot = Lot { is_cached: true, ..Lot::default() };
        let mut ends_are_cached = true;
        if self.is_trusted() {
            // Both ends, as a file that was read in part is warm up to some place.
            let ends =
                if ranges.len() > 1 { [ranges.first(), ranges.last()] } else { [ranges.first(), None] };
            for range in ends.into_iter().flatten() {
                ends_are_cached &= self.ask_for(*range, &*open(range.file)?, &mut lot);
            }
        }
        for range in ranges {
            if self.is_trusted() && ends_are_cached {
                break;
            }
            self.doubted = self.doubted.saturating_sub(1);
            self.ask_for(*range, &*open(range.file)?, &mut lot);
        }
        self.last = ranges.last().copied();
        Ok(lot)
    }

    /// Looks up one range, and asks for it if it is not cached. Returns whether it is.
    fn ask_for(&mut self, range: ByteRange, opened: &Opened, lot: &mut Lot) -> bool {
        let Some(range) = self.without_last(range) else { return true };
        let len = range.end().min(opened.size()).saturating_sub(range.offset);
        if opened.facts().mode == Mode::Read {
            lot.is_cached = false;
            return true;
        }
        let is_cached = opened.is_resident(range.offset, len) == Some(true);
        if is_cached {
            self.cached_in_a_row = self.cached_in_a_row.saturating_add(1);
            lot.cached += 1;
        } else {
            self.cached_in_a_row = 0;
            opened.fetch_ahead(range.offset, len);
            lot.asked_bytes += len;
            lot.is_cached = false;
        }
        is_cached
    }

    /// Whether the cache has held everything for long.
    pub fn is_warm(&self) -> bool {
        self.cached_in_a_row >= TRUST_AFTER_RANGES
    }

    /// Looks up every range for a while, because a reader had to wait; perhaps for something else than storage.
    pub fn doubt(&mut self) {
        self.doubted = TRUST_AFTER_RANGES;
    }

    fn is_trusted(&self) -> bool {
        self.is_warm() && self.doubted == 0 && !self.looks_at_all
    }

    /// The part of a range that the lot before did not ask for.
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

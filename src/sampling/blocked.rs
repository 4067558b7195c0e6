//! The order for storage that is slow at random reads: whole extents at random, mixed within a group.
//!
//! ```text
//! windows ── cut ──> extents of consecutive windows ── permute ──> groups of OPEN_EXTENTS extents
//!                                                                     └── permute the windows of each group
//! ```
//!
//! A group reads a few long runs of the file.

use std::ops::Range;

use super::key::Key;
use super::permutation::Permutation;

/// Extents of a group.
pub const OPEN_EXTENTS: u64 = 16;

/// The division of windows into extents, which does not depend on the seed.
#[derive(Debug, Clone, Copy)]
struct Extents {
    windows: u64,
    /// Windows of an extent; the last may have fewer.
    size: u64,
    count: u64,
}

/// One epoch of the order. `at` keeps the last group that it worked out.
#[derive(Debug, Clone)]
pub struct Blocked {
    extents: Extents,
    order: Permutation,
    /// Position in the order of the extent with fewer windows.
    short: u64,
    key: Key,
    open: Group,
}

#[derive(Debug, Clone)]
struct Group {
    /// Indices of the epoch at which the windows of the group come.
    range: Range<u64>,
    order: Permutation,
    /// The first window of each of its extents. Worked out once: a permutation of extents for each
    /// window would cost more than that of the windows.
    starts: [u64; OPEN_EXTENTS as usize],
    /// The window, counted extent by extent, from which on the missing windows of the short extent are skipped.
    short_end: u64,
}

impl Blocked {
    /// `windows` lies in `1..=MAX_LENGTH`.
    pub(super) fn new(windows: u64, mixing_radius_windows: u64, key: Key) -> Self {
        let size = mixing_radius_windows.div_ceil(OPEN_EXTENTS).clamp(1, windows);
        let extents = Extents { windows, size, count: windows.div_ceil(size) };
        let order = Permutation::keyed(extents.count, key.derive(0));
        let short = order.inverse(extents.count - 1);
        let starts = [0; OPEN_EXTENTS as usize];
        let open = Group { range: 0..0, order: order.clone(), starts, short_end: 0 };
        Self { extents, order, short, key: key.derive(1), open }
    }

    /// The window that comes at `index` of the epoch.
    pub fn at(&mut self, index: u64) -> u64 {
        if !self.open.range.contains(&index) {
            self.open = self.group(index);
        }
        let Group { range, order, starts, short_end } = &self.open;
        let size = self.extents.size;
        // The group's windows one after another, extent by extent, as if no extent were short.
        let inside = order.at(index - range.start);
        let inside = if inside < *short_end { inside } else { inside + self.extents.missing() };
        starts[(inside / size) as usize] + inside % size
    }

    /// The number of the group that comes at `index` of the epoch, and all indices at which it comes.
    pub fn group_of(&self, index: u64) -> (u64, Range<u64>) {
        let missing = self.extents.missing();
        let short_group = self.short / OPEN_EXTENTS;
        // Groups after the one with the short extent begin that much earlier. What saturates lies beyond
        // the windows, of which there are 2^63 at most, also after `missing`, which is less, is taken away.
        let full = self.extents.size.saturating_mul(OPEN_EXTENTS);
        let first_after = full.saturating_mul(short_group + 1) - missing;
        let number = if index < first_after { index / full } else { (index + missing) / full };
        let start_of = |group: u64| {
            let start = full.saturating_mul(group);
            if group > short_group { start - missing } else { start }.min(self.extents.windows)
        };
        (number, start_of(number)..start_of(number + 1))
    }

    /// The runs of windows of a group, in the order of the permuted extents.
    pub fn group_extents(&self, group: u64) -> impl Iterator<Item = Range<u64>> + '_ {
        let count = self.extents.count;
        let first = group.saturating_mul(OPEN_EXTENTS).min(count);
        (first..first.saturating_add(OPEN_EXTENTS).min(count)).map(|slot| {
            let start = self.order.at(slot) * self.extents.size;
            start..(start + self.extents.size).min(self.extents.windows)
        })
    }

    fn group(&self, index: u64) -> Group {
        let (number, range) = self.group_of(index);
        let order = Permutation::keyed(range.end - range.start, self.key.derive(number));
        let mut starts = [0; OPEN_EXTENTS as usize];
        for (start, extent) in starts.iter_mut().zip(self.group_extents(number)) {
            *start = extent.start;
        }
        let size = self.extents.size;
        let short_end = match self.short.checked_sub(number * OPEN_EXTENTS) {
            Some(slot) if slot < OPEN_EXTENTS => slot * size + size - self.extents.missing(),
            _ => u64::MAX,
        };
        Group { range, order, starts, short_end }
    }
}

impl Extents {
    /// The number of windows that the last extent lacks.
    fn missing(self) -> u64 {
        // No overflow: an extent is no larger than the windows, which are 2^63 at most.
        self.count * self.size - self.windows
    }
}

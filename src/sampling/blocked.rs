//! The order for storage with slow random reads: whole extents at random, mixed within a group.
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

/// Number of extents in a group.
pub const OPEN_EXTENTS: u64 = 16;

/// The division of windows into extents. It does not depend on the seed.
#[derive(Debug, Clone, Copy)]
struct Extents {
    windows: u64,
    /// Number of windows in an extent; the last extent may have fewer.
    size: u64,
    count: u64,
}

/// An epoch of the order. `at` remembers the last group that it computed.
#[derive(Debug, Clone)]
pub struct Blocked {
    extents: Extents,
    order: Permutation,
    /// Position in the order of the short extent.
    short: u64,
    key: Key,
    open: Group,
}

#[derive(Debug, Clone)]
struct Group {
    /// Indices of the epoch that belong to the group.
    range: Range<u64>,
    order: Permutation,
    /// The first window of each of its extents. Computed once: permuting extents for each window would cost more than
    /// permuting windows.
    starts: [u64; OPEN_EXTENTS as usize],
    /// The window, counted extent by extent, from which the missing windows of the short extent are skipped.
    short_end: u64,
}

impl Blocked {
    /// Creates an epoch. `windows` must lie in `1..=MAX_LENGTH`.
    pub(super) fn new(windows: u64, mixing_radius_windows: u64, key: Key) -> Self {
        let size = mixing_radius_windows.div_ceil(OPEN_EXTENTS).clamp(1, windows);
        let extents = Extents { windows, size, count: windows.div_ceil(size) };
        let order = Permutation::keyed(extents.count, key.derive(0));
        let short = order.inverse(extents.count - 1);
        let starts = [0; OPEN_EXTENTS as usize];
        let open = Group { range: 0..0, order: order.clone(), starts, short_end: 0 };
        Self { extents, order, short, key: key.derive(1), open }
    }

    /// Returns the window at `index` of the epoch.
    pub fn at(&mut self, index: u64) -> u64 {
        if !self.open.range.contains(&index) {
            self.open = self.group(index);
        }
        let Group { range, order, starts, short_end } = &self.open;
        let size = self.extents.size;
        // The group's windows in sequence, extent by extent, as if no extent were short.
        let inside = order.at(index - range.start);
        let inside = if inside < *short_end { inside } else { inside + self.extents.missing() };
        starts[(inside / size) as usize] + inside % size
    }

    /// Returns the number of the group at `index` of the epoch, and the range of all its indices.
    pub fn group_of(&self, index: u64) -> (u64, Range<u64>) {
        let missing = self.extents.missing();
        let short_group = self.short / OPEN_EXTENTS;
        // Groups after the group with the short extent begin earlier by the missing windows. Saturated values lie
        // beyond the windows (2^63 at most), even after subtracting `missing`, which is smaller.
        let full = self.extents.size.saturating_mul(OPEN_EXTENTS);
        let first_after = full.saturating_mul(short_group + 1) - missing;
        let number = if index < first_after { index / full } else { (index + missing) / full };
        let start_of = |group: u64| {
            let start = full.saturating_mul(group);
            if group > short_group { start - missing } else { start }.min(self.extents.windows)
        };
        (number, start_of(number)..start_of(number + 1))
    }

    /// Returns the runs of windows of a group, in the order of the permuted extents.
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
    /// Returns the number of windows that the last extent lacks.
    fn missing(self) -> u64 {
        // No overflow: an extent is no larger than the number of windows, which is at most 2^63.
        self.count * self.size - self.windows
    }
}

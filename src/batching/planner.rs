//! The planning thread: chooses the next windows, and fetches their pages ahead.

use std::collections::{BTreeSet, VecDeque};
use std::sync::Arc;

use crate::allocate;
use crate::error::Result;
use crate::fetch::ahead::Ahead;
use crate::fetch::ranges::ByteRange;
use crate::mapped_file::Advice;
use crate::sampling::order::Order;

use super::metrics::Metrics;
use super::plan::{BatchPlan, PLAN};
use super::ring::Planned;
use super::threads::Shared;

/// The pages of a group are requested in pieces of this size, evenly while the previous group is used up.
const PIECE_BYTES: u64 = 1 << 20;

/// The body of the thread. In the blocked order a group has at most `max_group_batches` batches.
pub(super) fn plan_ahead(shared: &Shared, position: u64, max_group_batches: usize) {
    // In a random order, a fault or a read should fetch only its own pages. This is a hint; if it fails, reads report
    // why.
    let advice = if matches!(shared.feed.schedule.order, Order::Shuffled | Order::Random) {
        Advice::Random
    } else {
        Advice::Normal
    };
    shared.feed.sources.iter().for_each(|source| drop(source.corpus.advise(advice)));
    let mut this = Planner { position, max_group_batches, ..Planner::default() };
    this.ahead.looks_at_all = shared.options.without.trust;
    let mut was_warm = false;
    while shared.wait_for_room() {
        let next = this.next(shared).and_then(|next| this.checked(shared, next));
        let is_warm = this.ahead.is_warm();
        if is_warm != was_warm {
            shared.crew.set_warm(is_warm);
            was_warm = is_warm;
        }
        let goes_on = shared.ring(|ring| match next {
            Ok(Some(planned)) => {
                ring.set_warm(is_warm);
                ring.plan(planned);
                true
            }
            end => {
                ring.end(end.map(drop));
                false
            }
        });
        if !goes_on {
            return;
        }
    }
}

#[derive(Debug, Default)]
struct Planner {
    /// The position of the next batch to plan.
    position: u64,
    epochs: Epochs,
    max_group_batches: usize,
    ahead: Ahead,
    /// For the blocked order: the batches that are read together, and the group after them.
    group: BatchGroup,
    following: BatchGroup,
}

/// Batches whose pages are fetched together.
#[derive(Debug, Default)]
struct BatchGroup {
    batches: VecDeque<BatchPlan>,
    /// Number of batches when the group was created.
    count: usize,
    ranges: Arc<Vec<ByteRange>>,
    /// Number of ranges requested so far.
    asked: usize,
}

/// The latest epoch of each source; `None` before its first window. A batch of a mixture may reach an epoch and return
/// to the previous one: see [`Schedule::batch`](crate::sampling::schedule::Schedule::batch).
#[derive(Debug, Default)]
struct Epochs(Vec<Option<u64>>);

impl Epochs {
    /// Returns the sources that begin an epoch in this batch, or all of them in the first batch of a resumed stream.
    /// Returns none at the beginning of the stream, when the files have just been opened.
    fn sources_to_check(&mut self, plan: &BatchPlan, sources: usize) -> BTreeSet<usize> {
        let goes_on = self.0.is_empty() && plan.position > 0;
        let mut begun: BTreeSet<usize> = if goes_on { (0..sources).collect() } else { BTreeSet::new() };
        self.0.resize(sources, None);
        for row in &plan.rows {
            let latest = &mut self.0[row.source];
            if latest.is_some_and(|epoch| row.epoch > epoch) {
                begun.insert(row.source);
            }
            *latest = (*latest).max(Some(row.epoch));
        }
        begun
    }
}

impl Planner {
    /// Checks the files of a source when its epoch begins, and all files when a stream is resumed, so that no missing
    /// or replaced file is read.
    fn checked(&mut self, shared: &Shared, next: Option<Planned>) -> Result<Option<Planned>> {
        let Some(planned) = &next else { return Ok(next) };
        for source in self.epochs.sources_to_check(&planned.plan, shared.feed.sources.len()) {
            shared.feed.sources[source].corpus.check()?;
        }
        Ok(next)
    }

    fn next(&mut self, shared: &Shared) -> Result<Option<Planned>> {
        if matches!(shared.feed.schedule.order, Order::Blocked { .. }) {
            return self.next_of_group(shared);
        }
        let Some(plan) = shared.feed.plan(self.position)? else { return Ok(None) };
        self.position = plan.position + plan.global_rows;
        let ranges = shared.feed.page_ranges(&plan.rows)?;
        self.ask(shared, &ranges)?;
        Ok(Some(Planned { plan: Arc::new(plan), behind: Arc::new(ranges) }))
    }

    /// Returns the next batch of the group. It requests the pages of the following group in the order of the file,
    /// evenly while this one is used up.
    fn next_of_group(&mut self, shared: &Shared) -> Result<Option<Planned>> {
        if self.group.batches.is_empty() {
            if self.following.batches.is_empty() {
                self.following = self.work_out_group(shared)?;
            }
            self.fetch_following(shared, usize::MAX)?;
            self.group = std::mem::take(&mut self.following);
            self.following = self.work_out_group(shared)?;
        }
        let Some(plan) = self.group.batches.pop_front() else { return Ok(None) };
        let done = self.group.count - self.group.batches.len();
        let due = self.following.ranges.len() * done / self.group.count;
        self.fetch_following(shared, due)?;
        // Windows of a group share pages, so the pages are dropped with the group's last batch.
        let last = self.group.batches.is_empty();
        let behind = if last { std::mem::take(&mut self.group.ranges) } else { Arc::default() };
        Ok(Some(Planned { plan: Arc::new(plan), behind }))
    }

    fn work_out_group(&mut self, shared: &Shared) -> Result<BatchGroup> {
        let mut batches = VecDeque::new();
        let end = shared.feed.schedule.block_end(self.position)?;
        while self.position < end && batches.len() < self.max_group_batches {
            let Some(plan) = shared.feed.plan(self.position)? else { break };
            self.position = plan.position + plan.global_rows;
            batches.push_back(plan);
        }
        let ranges = shared.feed.page_ranges(batches.iter().flat_map(|plan| &plan.rows))?;
        let ranges = ranges.into_iter().flat_map(|range| range.pieces(PIECE_BYTES));
        let ranges = allocate::collected(ranges, PLAN)?;
        Ok(BatchGroup { count: batches.len(), batches, ranges: Arc::new(ranges), asked: 0 })
    }

    /// Requests the first `due` ranges of the following group, except those already requested.
    fn fetch_following(&mut self, shared: &Shared, due: usize) -> Result<()> {
        let (ranges, asked) = (self.following.ranges.clone(), self.following.asked);
        let due = due.min(ranges.len());
        if asked < due {
            self.ask(shared, &ranges[asked..due])?;
            self.following.asked = due;
        }
        Ok(())
    }

    fn ask(&mut self, shared: &Shared, ranges: &[ByteRange]) -> Result<()> {
        let lot = self.ahead.ask(ranges, |file| shared.feed.open(file))?;
        Metrics::add(&shared.metrics.already_cached, lot.cached);
        Metrics::add(&shared.metrics.bytes_read, lot.asked_bytes);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::super::plan::BatchRow;
    use super::*;

    fn batch(position: u64, rows: &[(usize, u64)]) -> BatchPlan {
        let rows =
            rows.iter().map(|&(source, epoch)| BatchRow { source, epoch, start: 0, stop: 1 }).collect();
        BatchPlan { position, global_rows: 1, rows }
    }

    #[test]
    fn each_source_is_checked_when_its_epoch_begins() {
        let mut epochs = Epochs::default();
        let mut of = |position, rows: &[(usize, u64)]| -> Vec<usize> {
            epochs.sources_to_check(&batch(position, rows), 3).into_iter().collect()
        };
        assert!(of(0, &[(0, 0), (1, 0)]).is_empty());
        assert_eq!(of(2, &[(0, 0), (1, 1), (1, 2), (2, 0)]), [1]);
        assert_eq!(of(6, &[(0, 1), (2, 1)]), [0, 2]);
        assert!(of(8, &[(0, 1), (1, 2)]).is_empty());
        // The last row belongs before the first one.
        assert_eq!(of(10, &[(0, 2), (1, 2), (0, 1)]), [0]);
        assert!(of(13, &[(0, 2)]).is_empty());
    }

    #[test]
    fn a_resumed_stream_checks_all_sources_once() {
        let mut epochs = Epochs::default();
        assert_eq!(epochs.sources_to_check(&batch(5, &[(1, 3)]), 2).len(), 2);
        assert_eq!(epochs.sources_to_check(&batch(6, &[(0, 3), (1, 3)]), 2).len(), 0);
    }
}

//! The planning thread: which windows come next, and fetching their pages ahead.

use std::collections::{BTreeSet, VecDeque};
use std::sync::Arc;

use crate::error::Result;
use crate::mapped_file::Advice;

use super::lookahead::{Lookahead, PageRange, page_ranges};
use super::plan::BatchPlan;
use super::threads::{Planned, Shared};

/// Blocks are asked for in pieces of this size, evenly.
const PIECE_BYTES: u64 = 1 << 20;

/// The body of the thread. Where whole extents are read, a block has no more than so many batches.
pub(super) fn plan_ahead(shared: &Shared, position: u64, max_block_batches: usize) {
    // Random order: a fault or a read fetches just its pages. Hints, so a failure is one of the reads.
    let advice = if shared.feed.is_random() { Advice::Random } else { Advice::Normal };
    shared.feed.sources().iter().for_each(|source| drop(source.corpus.advise(advice)));
    let mut ahead = Planner { position, max_block_batches, ..Planner::default() };
    loop {
        let state = shared.sleep_for_room(shared.lock());
        if state.stop {
            return;
        }
        drop(state);
        let next = ahead.next(shared).and_then(|next| ahead.checked(shared, next));
        let mut state = shared.lock();
        match next {
            Ok(Some(planned)) => {
                state.planned.push_back(planned);
                let warm = ahead.lookahead.is_warm();
                if warm && !state.warm {
                    state.lookahead.start_anew();
                    state.ring_limit.start_anew();
                }
                state.warm = warm;
                let room = state.ring.len() < state.ring_limit.now();
                shared.wake_gatherers(&state, usize::from(room));
            }
            end => {
                state.ended = Some(end.map(drop));
                shared.wake_consumers(&state);
                return;
            }
        }
    }
}

#[derive(Debug, Default)]
struct Planner {
    /// Of the next batch that is worked out.
    position: u64,
    epochs: Epochs,
    max_block_batches: usize,
    lookahead: Lookahead,
    /// Where whole extents are read: the batches that are read together, and those after them.
    block: BatchGroup,
    following: BatchGroup,
}

/// Batches whose pages are fetched together.
#[derive(Debug, Default)]
struct BatchGroup {
    batches: VecDeque<BatchPlan>,
    /// Batches when it was made.
    count: usize,
    ranges: Arc<Vec<PageRange>>,
    /// How many of the ranges were asked for.
    asked: usize,
}

/// Of each source, the epoch of its last window; `None` before the first.
#[derive(Debug, Default)]
struct Epochs(Vec<Option<u64>>);

impl Epochs {
    /// Sources that begin an epoch in this batch; all of them in the first batch of a stream that goes on.
    /// Nothing for its own beginning: the files have just been opened.
    fn sources_to_check(&mut self, plan: &BatchPlan, sources: usize) -> BTreeSet<usize> {
        let goes_on = self.0.is_empty() && plan.position > 0;
        let mut begun: BTreeSet<usize> = if goes_on { (0..sources).collect() } else { BTreeSet::new() };
        self.0.resize(sources, None);
        for row in &plan.rows {
            let before = self.0[row.source].replace(row.epoch);
            if before.is_some_and(|epoch| epoch != row.epoch) {
                begun.insert(row.source);
            }
        }
        begun
    }
}

impl Planner {
    /// Looks at a source's files when its epoch begins, and at all files where a stream goes on that began
    /// before: what has vanished or was replaced is not read for another.
    fn checked(&mut self, shared: &Shared, next: Option<Planned>) -> Result<Option<Planned>> {
        let Some(planned) = &next else { return Ok(next) };
        for source in self.epochs.sources_to_check(&planned.plan, shared.feed.sources().len()) {
            shared.feed.check(source)?;
        }
        Ok(next)
    }

    fn next(&mut self, shared: &Shared) -> Result<Option<Planned>> {
        if shared.feed.is_blocked() {
            return self.next_of_block(shared);
        }
        let Some(plan) = shared.feed.plan(self.position)? else { return Ok(None) };
        self.position = plan.position + plan.global_rows;
        let ranges = page_ranges(&shared.feed, &plan.rows)?;
        self.lookahead.fetch(&shared.feed, &ranges, &shared.fetched_late, &shared.metrics)?;
        Ok(Some(Planned { plan: Arc::new(plan), behind: Arc::new(ranges) }))
    }

    /// The next batch of the block. The pages of the following one are asked for in the order of the file,
    /// evenly while this one is used up.
    fn next_of_block(&mut self, shared: &Shared) -> Result<Option<Planned>> {
        if self.block.batches.is_empty() {
            if self.following.batches.is_empty() {
                self.following = self.work_out_block(shared)?;
            }
            self.fetch_following(shared, usize::MAX)?;
            self.block = std::mem::take(&mut self.following);
            self.following = self.work_out_block(shared)?;
        }
        let Some(plan) = self.block.batches.pop_front() else { return Ok(None) };
        let done = self.block.count - self.block.batches.len();
        let due = self.following.ranges.len() * done / self.block.count;
        self.fetch_following(shared, due)?;
        // Windows of a block share pages: they are let go of with its last batch.
        let last = self.block.batches.is_empty();
        let behind = if last { std::mem::take(&mut self.block.ranges) } else { Arc::default() };
        Ok(Some(Planned { plan: Arc::new(plan), behind }))
    }

    fn work_out_block(&mut self, shared: &Shared) -> Result<BatchGroup> {
        let mut batches = VecDeque::new();
        let end = shared.feed.block_end(self.position);
        while self.position < end && batches.len() < self.max_block_batches {
            let Some(plan) = shared.feed.plan(self.position)? else { break };
            self.position = plan.position + plan.global_rows;
            batches.push_back(plan);
        }
        let ranges = page_ranges(&shared.feed, batches.iter().flat_map(|plan| &plan.rows))?;
        let ranges = ranges.into_iter().flat_map(pieces).collect();
        Ok(BatchGroup { count: batches.len(), batches, ranges: Arc::new(ranges), asked: 0 })
    }

    /// Asks for the first `due` ranges of the following block, as far as that has not been done.
    fn fetch_following(&mut self, shared: &Shared, due: usize) -> Result<()> {
        let BatchGroup { ranges, asked, .. } = &mut self.following;
        let due = due.min(ranges.len());
        if *asked < due {
            let ranges = &ranges[*asked..due];
            self.lookahead.fetch(&shared.feed, ranges, &shared.fetched_late, &shared.metrics)?;
            *asked = due;
        }
        Ok(())
    }
}

fn pieces(range: PageRange) -> impl Iterator<Item = PageRange> {
    let starts = (range.start..range.stop).step_by(PIECE_BYTES as usize);
    starts.map(move |start| PageRange { start, stop: range.stop.min(start + PIECE_BYTES), ..range })
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
    fn each_source_is_looked_at_when_its_own_epoch_begins() {
        let mut epochs = Epochs::default();
        let mut of = |position, rows: &[(usize, u64)]| -> Vec<usize> {
            epochs.sources_to_check(&batch(position, rows), 3).into_iter().collect()
        };
        assert!(of(0, &[(0, 0), (1, 0)]).is_empty());
        assert_eq!(of(2, &[(0, 0), (1, 1), (1, 2), (2, 0)]), [1]);
        assert_eq!(of(6, &[(0, 1), (2, 1)]), [0, 2]);
        assert!(of(8, &[(0, 1), (1, 2)]).is_empty());
    }

    #[test]
    fn a_stream_that_goes_on_looks_at_all_of_them_once() {
        let mut epochs = Epochs::default();
        assert_eq!(epochs.sources_to_check(&batch(5, &[(1, 3)]), 2).len(), 2);
        assert_eq!(epochs.sources_to_check(&batch(6, &[(0, 3), (1, 3)]), 2).len(), 0);
    }
}

//! The gathering threads: they take pieces of batches, fill them, and finish batches.

use std::sync::Arc;
use std::sync::MutexGuard;
use std::sync::atomic::Ordering;

use crate::error::{Error, Result};
use crate::mapped_file::DropBehind;
use crate::os::memory::parts::Whole;

use super::gatherer::{ChunkOutcome, Gatherer};
use super::lookahead::{PageRange, is_resident};
use super::plan::{BatchPlan, Feed};
use super::threads::{BatchSlot, Shared, SlotWork, State, Storage, Task, spawn};

/// After this many rows the number of threads is looked at.
const LOOK_AFTER_ROWS: usize = 32;
/// A piece of work while nobody waits for storage: long enough that taking and finishing it costs nothing
/// beside it.
const CHUNK_BYTES: usize = 1 << 20;
/// Pieces of a batch at most: more would keep no more threads busy, and each takes memory.
const MAX_CHUNKS: usize = 1024;

/// A piece of a batch that was taken.
#[derive(Debug)]
pub(super) struct Claim {
    number: u64,
    plan: Arc<BatchPlan>,
    piece: Result<SlotWork>,
}

/// A gatherer. An extra one ends when storage is not waited for.
pub(super) fn gather_until_stopped(shared: &Arc<Shared>, is_extra: bool) {
    let mut worker = Gatherer::default();
    let mut state = shared.lock();
    while !state.stop {
        let Some(claimed) = claim(shared, &mut state) else {
            state = shared.sleep_for_work(state);
            continue;
        };
        drop(state);
        state = work_on(shared, claimed, &mut worker);
        if state.storage.rows < LOOK_AFTER_ROWS {
            continue;
        }
        look_at_storage(&mut state);
        if !state.storage.is_slow {
            if is_extra {
                // What it would have taken next is another's.
                shared.wake_gatherers(&state, 1);
                return;
            }
        } else if shared.options.threads.is_none() {
            let more = more_threads(&mut state, shared.max_gatherers);
            drop(state);
            for _ in 0..more {
                // With those that there are it goes on as well.
                let _ = spawn(shared, Task::Gather, |shared| gather_until_stopped(shared, true));
            }
            state = shared.lock();
        }
    }
}

impl Claim {
    /// Whether all that it needs is known to be in the page cache.
    pub fn is_resident(&self, feed: &Feed) -> bool {
        match &self.piece {
            Ok(SlotWork::Rows(chunk)) => is_resident(feed, &self.plan.rows[chunk.rows.clone()]),
            // A server may be asked, and may not answer.
            Ok(SlotWork::Check(_)) => false,
            Err(_) => true,
        }
    }

    /// Leaves it to another.
    pub fn give_back(self, shared: &Shared, state: &mut State) {
        let index = self.number.checked_sub(state.first);
        let slot = index.and_then(|index| state.ring.get_mut(index as usize));
        if let (Some(slot), Ok(piece)) = (slot, self.piece) {
            slot.pieces.push(piece);
            shared.wake_gatherers(state, 1);
        }
    }
}

/// Fills what was claimed, without the lock, which it returns.
pub(super) fn work_on<'a>(
    shared: &'a Shared,
    Claim { number, plan, piece }: Claim,
    worker: &mut Gatherer,
) -> MutexGuard<'a, State> {
    let outcome = match piece {
        Ok(SlotWork::Rows(mut chunk)) => {
            let element = shared.options.element;
            (chunk.rows.len(), worker.gather(&shared.feed, &plan, &mut chunk, element, &shared.metrics))
        }
        Ok(SlotWork::Check(file)) => {
            let checked = shared.feed.sources()[file.0].corpus.verify_now([file.1]);
            (0, checked.map(|()| ChunkOutcome::default()))
        }
        Err(error) => (0, Err(error)),
    };
    let mut state = shared.lock();
    let behind = finish(shared, &mut state, number, outcome);
    if let (Some(what), Some(ranges)) = (shared.options.drop_behind, behind) {
        drop(state);
        drop_behind(shared, &ranges, what);
        state = shared.lock();
    }
    state
}

/// The next piece of work: of the first batch that has one, else of a new one if the ring has room.
pub(super) fn claim(shared: &Shared, state: &mut State) -> Option<Claim> {
    let first = state.first;
    let open = state.ring.iter_mut().enumerate().find_map(|(index, slot)| {
        let piece = slot.pieces.pop()?;
        Some(Claim { number: first + index as u64, plan: slot.plan.clone(), piece: Ok(piece) })
    });
    if open.is_some() || state.ring.len() >= state.ring_limit.now() {
        return open;
    }
    let planned = state.planned.pop_front()?;
    shared.wake_planner(state);
    let number = first + state.ring.len() as u64;
    let mut slot = BatchSlot::new(planned);
    let rows = slot.plan.rows.len();
    let row_bytes = shared.layout.buffer_bytes.div_ceil(shared.layout.rows.max(1));
    let chunk_rows = chunk_rows(rows, row_bytes, state.storage.is_slow);
    let made = shared.pool.take().and_then(|block| shared.layout.chunks(block, rows, chunk_rows));
    let plan = slot.plan.clone();
    let piece = match made {
        Ok((whole, chunks)) if chunks.is_empty() => {
            // This rank has no row of a short last batch.
            slot.finished = whole.join().ok().map(|block| Ok(shared.pool.lease(block)));
            slot.open = 0;
            state.ring.push_back(slot);
            shared.wake_consumers(state);
            return claim(shared, state);
        }
        Ok((whole, chunks)) => {
            slot.open = chunks.len();
            slot.whole = Some(whole);
            slot.pieces = chunks.into_iter().rev().map(SlotWork::Rows).collect();
            slot.pieces.pop().ok_or_else(|| Error::argument("a batch without rows"))
        }
        Err(error) => Err(error),
    };
    shared.wake_gatherers(state, slot.pieces.len());
    state.ring.push_back(slot);
    Some(Claim { number, plan, piece })
}

/// Rows of a piece. Where threads wait for storage each takes one, so that many wait at the same time.
fn chunk_rows(rows: usize, row_bytes: usize, is_slow: bool) -> usize {
    let wanted = if is_slow { 1 } else { (CHUNK_BYTES / row_bytes.max(1)).max(1) };
    wanted.max(rows.div_ceil(MAX_CHUNKS))
}

/// Takes note of a piece that is done. Where that was the last of its batch: what can be let go of.
fn finish(
    shared: &Shared,
    state: &mut State,
    number: u64,
    (rows, outcome): (usize, Result<ChunkOutcome>),
) -> Option<Arc<Vec<PageRange>>> {
    let index = number.checked_sub(state.first)?;
    let slot = state.ring.get_mut(index as usize)?;
    slot.open -= 1;
    match outcome {
        Ok(outcome) => {
            slot.waited |= outcome.waited;
            slot.documents.extend(outcome.documents);
            slot.unmapped.extend(outcome.unmapped);
            state.storage.rows += rows;
            if outcome.waited {
                state.storage.waited_rows += rows;
                shared.fetched_late.store(true, Ordering::Relaxed);
            }
        }
        Err(error) => {
            slot.finished.get_or_insert(Err(error));
        }
    }
    if slot.open > 0 {
        return None;
    }
    if slot.finished.is_none() && !slot.unmapped.is_empty() {
        let mut files = std::mem::take(&mut slot.unmapped);
        files.sort_unstable();
        files.dedup();
        slot.open = files.len();
        slot.pieces = files.into_iter().map(SlotWork::Check).collect();
        // The caller goes on with one of them.
        let others = slot.open - 1;
        shared.wake_gatherers(state, others);
        return None;
    }
    if slot.finished.is_none() {
        let whole = slot.whole.take().map(Whole::join);
        slot.finished = Some(match whole {
            Some(Ok(block)) => Ok(shared.pool.lease(block)),
            _ => Err(Error::argument("a part of the batch is still in use")),
        });
    }
    let behind = slot.behind.clone();
    if index == 0 {
        shared.wake_consumers(state);
    }
    Some(behind)
}

fn drop_behind(shared: &Shared, ranges: &[PageRange], what: DropBehind) {
    for range in ranges {
        if let Ok(opened) = shared.feed.sources()[range.source].corpus.opened(range.shard) {
            let stop = range.stop.min(opened.size());
            opened.drop_behind(range.start, stop.saturating_sub(range.start), what);
        }
    }
}

/// Storage is slow where a quarter of the rows had to wait. Threads also wait for each other when the
/// memory of the process changes, which a warm cache tells apart.
fn look_at_storage(state: &mut State) {
    let Storage { rows, waited_rows, .. } = state.storage;
    let is_slow = !state.warm && waited_rows * 4 >= rows;
    state.storage = Storage { rows: 0, waited_rows: 0, is_slow };
}

/// How many threads to start, which are counted from now on: as many as there are.
fn more_threads(state: &mut State, most: usize) -> usize {
    let more = state.gatherers.min(most.saturating_sub(state.gatherers));
    state.count_in(Task::Gather, more);
    more
}

#[cfg(test)]
mod tests {
    use super::super::threads::Length;
    use super::*;

    #[test]
    fn a_batch_has_a_bounded_number_of_pieces() {
        for rows in [1, 7, 1024, 1025, 100_000, 1 << 24] {
            for (row_bytes, is_slow) in [(16, true), (4096, true), (16, false), (8 << 20, false)] {
                let each = chunk_rows(rows, row_bytes, is_slow);
                assert!(rows.div_ceil(each) <= MAX_CHUNKS, "{rows} rows of {row_bytes} bytes");
            }
        }
        assert_eq!(chunk_rows(64, 4096, true), 1);
        assert_eq!(chunk_rows(1000, 4096, false), 256);
    }

    #[test]
    fn gatherers_multiply_by_themselves_alone() {
        let mut state = State::new(Length::new(1, 1), Length::new(1, 1));
        state.count_in(Task::Plan, 1);
        state.count_in(Task::Fingerprint, 1);
        state.count_in(Task::Gather, 3);
        assert_eq!(more_threads(&mut state, 64), 3);
        assert_eq!((state.gatherers, state.threads), (6, 8));
        assert_eq!(more_threads(&mut state, 8), 2);
        assert_eq!(more_threads(&mut state, 8), 0);
    }
}

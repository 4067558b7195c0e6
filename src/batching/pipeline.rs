//! A stream of batches made ahead of their use.
//!
//! One planning thread works out which windows the next batches have and asks the kernel for their
//! pages; gathering threads copy and widen them into buffers; the consumer takes finished batches in
//! order. None of these threads knows Python.
//!
//! Two lengths adapt. *Lookahead* is for how many batches pages are asked ahead, the *ring* how many are
//! being filled or are full; `sizes.rs` has where they begin and end. Both double when the consumer had to wait and the gatherers had waited for
//! storage, up to the memory budget. Where gathering threads wait, more of them are started: that is
//! how files that cannot be mapped are read concurrently.

use std::sync::{Arc, Mutex, MutexGuard, TryLockError};
use std::time::{Duration, Instant};

use crate::error::{Error, Result};
use crate::mapped_file::DropBehind;
use crate::widen::Element;

use super::gatherer::Gatherer;
use super::layout::BatchLayout;
use super::metrics::Metrics;
use super::plan::Feed;
use super::planner::plan_ahead;
use super::pool::Lease;
use super::ring::{claim, gather_until_stopped, work_on};
use super::sizes::Sizes;
use super::threads::{EndOnPanic, Shared, Task, spawn};

/// Gathering threads that can be asked for; by itself a loader starts fewer.
pub const MAX_GIVEN_THREADS: usize = 1024;
/// Corpora of more files are left for when the fingerprint is asked for: not all of them stay open.
const MAX_FINGERPRINTED_SHARDS: usize = 1024;
/// How long closing waits for threads that are in the middle of a read.
const CLOSE_PATIENCE: Duration = Duration::from_secs(1);

#[derive(Debug, Clone)]
pub struct Options {
    pub element: Element,
    /// Whether batches tell documents apart.
    pub documents: bool,
    /// Gathering threads; `None` adapts.
    pub threads: Option<usize>,
    /// Batches asked for ahead; `None` adapts.
    pub lookahead: Option<usize>,
    pub memory_bytes: Option<u64>,
    pub drop_behind: Option<DropBehind>,
}

/// A finished batch.
#[derive(Debug)]
pub struct Batch {
    pub buffer: Lease,
    pub rows: usize,
    /// Samples that the stream has given out, all ranks together, once this batch is consumed.
    pub position_after: u64,
    /// Where documents begin within the batch's tokens, row after row; each row begins one.
    pub documents: Option<Vec<u64>>,
}

#[derive(Debug)]
pub enum Next {
    Batch(Box<Batch>),
    End,
    /// Not within the time given.
    NotYet,
}

#[derive(Debug)]
pub struct Pipeline {
    shared: Arc<Shared>,
    /// The consumer's own, for when it lends a hand.
    worker: Mutex<Gatherer>,
    process: u32,
}

impl Pipeline {
    /// Starts at `position`, a number of samples of the stream.
    pub fn start(feed: Feed, options: Options, position: u64) -> Result<Self> {
        if let Some(threads) = options.threads.filter(|threads| !(1..=MAX_GIVEN_THREADS).contains(threads)) {
            let detail = format!("threads must be 1 to {MAX_GIVEN_THREADS}, not {threads}");
            return Err(Error::argument(detail));
        }
        let layout = BatchLayout::new(&feed, options.element, options.documents)?;
        let sizes = Sizes::new(&feed, &options, layout.buffer_bytes as u64);
        let shared = Arc::new(Shared::new(feed, options, layout, &sizes));
        let pipeline = Self { shared: shared.clone(), worker: Mutex::default(), process: std::process::id() };
        shared.lock().count_in(Task::Plan, 1);
        spawn(&shared, Task::Plan, move |shared| {
            plan_ahead(shared, position, sizes.max_block_batches);
        })?;
        for _ in 0..sizes.first_gatherers {
            shared.lock().count_in(Task::Gather, 1);
            spawn(&shared, Task::Gather, |shared| gather_until_stopped(shared, false))?;
        }
        shared.lock().count_in(Task::Fingerprint, 1);
        // Without it the fingerprints are worked out when they are asked for.
        let _ = spawn(&shared, Task::Fingerprint, |shared| work_out_fingerprints(shared));
        Ok(pipeline)
    }

    /// Whether this process is the one that started the threads, and not a fork of it.
    pub fn is_of_this_process(&self) -> bool {
        self.process == std::process::id()
    }

    /// The next batch, waiting for it at most so long. An error is that of this batch; the stream is to be
    /// started anew after it.
    pub fn next(&self, patience: Duration) -> Result<Next> {
        if !self.is_of_this_process() {
            return Err(Error::argument(
                "the loader's threads belong to the process that this one was forked from",
            ));
        }
        let begun = Instant::now();
        let mut state = self.shared.lock();
        let (mut stalled, mut may_help) = (false, true);
        loop {
            if state.ring.front().is_some_and(|slot| slot.finished.is_some()) {
                break;
            }
            if state.stop || (state.ring.is_empty() && state.planned.is_empty()) {
                match &state.ended {
                    Some(Err(error)) => return Err(error.clone()),
                    _ if state.stop => return Err(Error::argument("the loader is closed")),
                    Some(Ok(())) => return Ok(Next::End),
                    None => {}
                }
            }
            // Sooner done than woken. Not where storage would have to be waited for, as far as that can be
            // foreseen: the caller wants to hear signals.
            if !state.storage.is_slow
                && may_help
                && let Some(mut worker) = self.lend_a_hand()
                && let Some(claimed) = claim(&self.shared, &mut state)
            {
                let _end = EndOnPanic(&self.shared);
                drop(state);
                if claimed.is_resident(&self.shared.feed) {
                    state = work_on(&self.shared, claimed, &mut worker);
                } else {
                    state = self.shared.lock();
                    claimed.give_back(&self.shared, &mut state);
                    may_help = false;
                }
                continue;
            }
            let left = patience.saturating_sub(begun.elapsed());
            if left.is_zero() {
                self.shared.metrics.stalled(begun.elapsed());
                state.consumer_waited = true;
                return Ok(Next::NotYet);
            }
            stalled = true;
            state = self.shared.sleep_for_batch(state, left);
        }
        let Some(slot) = state.ring.pop_front() else { return Ok(Next::NotYet) };
        state.first += 1;
        // Also where an earlier call gave up waiting for this batch.
        stalled |= std::mem::take(&mut state.consumer_waited);
        if stalled {
            self.shared.metrics.stalled(begun.elapsed());
            Metrics::add(&self.shared.metrics.stalls, 1);
            if slot.waited && !state.warm && self.shared.options.lookahead.is_none() {
                state.lookahead.double();
                state.ring_limit.double();
            }
        }
        self.shared.wake_gatherers(&state, 1);
        self.shared.wake_planner(&state);
        drop(state);
        let Some(finished) = slot.finished else { return Ok(Next::NotYet) };
        let buffer = finished?;
        Metrics::add(&self.shared.metrics.batches, 1);
        Metrics::add(&self.shared.metrics.windows, slot.plan.rows.len() as u64);
        let tokens = self.shared.feed.sources().first().map_or(0, |source| source.windows.sequence_length());
        let documents = self.shared.options.documents.then(|| flatten(slot.documents, tokens));
        Ok(Next::Batch(Box::new(Batch {
            buffer,
            rows: slot.plan.rows.len(),
            position_after: slot.plan.position + slot.plan.global_rows,
            documents,
        })))
    }

    /// Whether [`Self::next`] would not wait.
    pub fn is_ready(&self) -> bool {
        if !self.is_of_this_process() {
            return true; // It would refuse.
        }
        let state = self.shared.lock();
        let ended = state.ended.is_some() && state.ring.is_empty() && state.planned.is_empty();
        state.stop || ended || state.ring.front().is_some_and(|slot| slot.finished.is_some())
    }

    /// The consumer's worker, unless another consumer has it.
    fn lend_a_hand(&self) -> Option<MutexGuard<'_, Gatherer>> {
        match self.worker.try_lock() {
            Ok(worker) => Some(worker),
            Err(TryLockError::Poisoned(worker)) => Some(worker.into_inner()),
            Err(TryLockError::WouldBlock) => None,
        }
    }

    pub fn layout(&self) -> BatchLayout {
        self.shared.layout
    }

    /// Counters, and the present lookahead, ring, threads and buffers. In a fork of the process the counters alone,
    /// as they stood then: there are no threads, and one of them may have held the lock.
    pub fn metrics(&self) -> Vec<(&'static str, u64)> {
        let mut list = self.shared.metrics.list();
        if !self.is_of_this_process() {
            return list;
        }
        let state = self.shared.lock();
        list.extend([
            ("depth_batches", state.lookahead.now() as u64),
            ("ring_batches", state.ring_limit.now() as u64),
            ("threads", state.threads as u64),
            ("buffers_allocated", self.shared.pool.made()),
        ]);
        list
    }

    /// Stops the threads and waits for them, but not for ever: one may hang in a read of dead storage.
    pub fn close(&self) {
        if !self.is_of_this_process() {
            return;
        }
        let mut state = self.shared.lock();
        if state.stop {
            return; // Whoever did so waited.
        }
        self.shared.stop(&mut state);
        let deadline = Instant::now() + CLOSE_PATIENCE;
        while state.threads > 0 && Instant::now() < deadline {
            let left = deadline.saturating_duration_since(Instant::now());
            state = self.shared.sleep_for_end(state, left);
        }
        state.ring.clear();
        state.planned.clear();
    }
}

impl Drop for Pipeline {
    fn drop(&mut self) {
        if self.is_of_this_process() {
            self.close();
        } else {
            // A fork has no such threads, and the lock may be one that they held: nothing is touched.
            std::mem::forget(self.shared.clone());
        }
    }
}

/// So that the state of the stream can be told without a read, also once a file has failed.
fn work_out_fingerprints(shared: &Shared) {
    for source in shared.feed.sources() {
        if !shared.lock().stop && source.corpus.shards().len() <= MAX_FINGERPRINTED_SHARDS {
            // What fails now fails again when it is asked for.
            let _ = source.corpus.fingerprint();
        }
    }
}

/// BatchRow after row, each row beginning a document.
fn flatten(mut rows: Vec<(usize, Vec<u64>)>, tokens: u64) -> Vec<u64> {
    rows.sort_unstable();
    let starts = rows.into_iter().map(|(row, starts)| (row as u64 * tokens, starts));
    starts
        .flat_map(|(first, starts)| {
            std::iter::once(first).chain(starts.into_iter().map(move |start| first + start))
        })
        .collect()
}

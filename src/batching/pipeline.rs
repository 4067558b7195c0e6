//! A stream of batches made ahead of their use.
//!
//! One planning thread works out which windows the next batches have and asks the kernel for their
//! pages; gathering threads copy and widen them into buffers; the consumer takes finished batches in
//! order. None of these threads knows Python.
//!
//! Two lengths adapt. *Depth* is for how many batches pages are asked ahead, the *ring* how many are
//! being filled or are full. Both double when the consumer had to wait and the gatherers had waited for
//! storage, up to the memory budget. Where gathering threads wait, more of them are started: that is
//! how files that cannot be mapped are read concurrently.

use std::sync::{Arc, Mutex, MutexGuard, TryLockError};
use std::time::{Duration, Instant};

use crate::error::{Error, Result};
use crate::gather::Element;
use crate::mapped_file::LetGo;
use crate::os::limits;

use super::feed::Feed;
use super::gatherers::{claim, gather_until_stopped, work_on};
use super::layout::Layout;
use super::metrics::Metrics;
use super::planner::plan_ahead;
use super::pool::Lease;
use super::shared::{EndOnPanic, Length, Shared, State, spawn};
use super::worker::Worker;

/// Windows that are asked for ahead from the first: with 256 on the way a disk reads at the rate of direct
/// readers at queue depth 64, with 16 at 0.7 to 0.8 of it.
const FIRST_DEPTH_WINDOWS: usize = 256;
/// Gathering threads that can be asked for; by itself a loader starts fewer.
const MAX_GIVEN_THREADS: usize = 1024;
const MAX_FINGERPRINTED_SHARDS: usize = 1024;
/// Gathering threads where files are mapped: at first, or a core less than there are, as that is the
/// consumer's; and at most. Their pages are fetched ahead: more threads would not fetch more.
const FIRST_GATHERERS: usize = 4;
const MAX_GATHERERS: usize = 8;
/// Where files are read without a mapping: at first, and at most. Each of them waits for one read.
const FIRST_READERS: usize = 16;
const MAX_READERS: usize = 64;
const FIRST_RING: usize = 4;
const MAX_RING: usize = 64;
/// Buffers beyond this serve nobody: the memory is better left to the page cache.
const MAX_RING_BYTES: u64 = 32 << 20;
const MAX_DEPTH: usize = 4096;
/// Storage of 1 GB/s that takes an eighth of a second to answer needs as much on the way.
const MAX_AHEAD_BYTES: u64 = 128 << 20;
/// In the blocked order: windows that are worked out together, at most.
const MAX_BLOCK_WINDOWS: usize = 1 << 20;
/// Without a budget given: this share of the memory that is available, and no more than the second.
const MEMORY_SHARE: u64 = 8;
const MEMORY_BYTES: u64 = 1 << 30;
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
    pub depth: Option<usize>,
    pub memory_bytes: Option<u64>,
    pub let_go: Option<LetGo>,
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
    worker: Mutex<Worker>,
    process: u32,
}

impl Pipeline {
    /// Starts at `position`, a number of samples of the stream.
    pub fn start(feed: Feed, options: Options, position: u64) -> Result<Self> {
        if let Some(threads) = options.threads.filter(|threads| !(1..=MAX_GIVEN_THREADS).contains(threads)) {
            let detail = format!("threads must be 1 to {MAX_GIVEN_THREADS}, not {threads}");
            return Err(Error::argument(detail));
        }
        let layout = Layout::new(&feed, options.element, options.documents)?;
        let budget = options.memory_bytes.unwrap_or_else(default_memory_bytes);
        let windows_bytes = ahead_bytes(&feed);
        let fitting = |most: u64, each: u64| (most.min(budget / 2) / each.max(1)) as usize;
        let max_ring = fitting(MAX_RING_BYTES, layout.buffer_bytes as u64).clamp(FIRST_RING, MAX_RING);
        let max_ring = max_ring.min(fitting(u64::MAX, layout.buffer_bytes as u64).max(2));
        let max_depth = fitting(MAX_AHEAD_BYTES, windows_bytes).clamp(2, MAX_DEPTH);
        let rows = feed.share().batch_size.max(1) as usize;
        let most_ahead = fitting(u64::MAX, windows_bytes).clamp(1, MAX_DEPTH);
        let depth = options.depth.map_or(FIRST_DEPTH_WINDOWS.div_ceil(rows).clamp(2, max_depth), |depth| {
            depth.clamp(1, most_ahead)
        });
        let ring_limit = options.depth.map_or(FIRST_RING, |depth| depth.clamp(1, FIRST_RING)).min(max_ring);
        let state = State::new(Length::new(depth, max_depth), Length::new(ring_limit, max_ring));
        let max_block_batches =
            ((budget / 4 / windows_bytes.max(1)) as usize).min(MAX_BLOCK_WINDOWS / rows).max(1);
        let is_mapped = !feed.is_read_without_mapping();
        let max_gatherers = if is_mapped { MAX_GATHERERS } else { MAX_READERS };
        let first = if is_mapped { (cores() - 1).clamp(1, FIRST_GATHERERS) } else { FIRST_READERS };
        let gatherers = options.threads.unwrap_or(first);
        let shared = Arc::new(Shared::new(feed, options, layout, state, max_gatherers));
        let pipeline = Self { shared: shared.clone(), worker: Mutex::default(), process: std::process::id() };
        shared.lock().threads += 1;
        spawn(&shared, "pagestream-plan", move |shared| plan_ahead(shared, position, max_block_batches))?;
        for _ in 0..gatherers {
            shared.lock().threads += 1;
            spawn(&shared, "pagestream-gather", |shared| gather_until_stopped(shared, false))?;
        }
        shared.lock().threads += 1;
        // Without it the fingerprints are worked out when they are asked for.
        let _ = spawn(&shared, "pagestream-print", |shared| work_out_fingerprints(shared));
        Ok(pipeline)
    }

    /// Whether this process is the one that started the threads, and not a fork of it.
    pub fn is_of_this_process(&self) -> bool {
        self.process == std::process::id()
    }

    /// The next batch, waiting for it at most so long. An error is that of this batch; the stream is to be
    /// started anew after it.
    pub fn next(&self, patience: Duration) -> Result<Next> {
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
            // Sooner done than woken. Not where storage would have to be waited for: the caller wants to
            // hear signals.
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
            if slot.waited && !state.warm && self.shared.options.depth.is_none() {
                state.depth.double();
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
        let state = self.shared.lock();
        let ended = state.ended.is_some() && state.ring.is_empty() && state.planned.is_empty();
        state.stop || ended || state.ring.front().is_some_and(|slot| slot.finished.is_some())
    }

    /// The consumer's worker, unless another consumer has it.
    fn lend_a_hand(&self) -> Option<MutexGuard<'_, Worker>> {
        match self.worker.try_lock() {
            Ok(worker) => Some(worker),
            Err(TryLockError::Poisoned(worker)) => Some(worker.into_inner()),
            Err(TryLockError::WouldBlock) => None,
        }
    }

    pub fn layout(&self) -> Layout {
        self.shared.layout
    }

    /// Counters, and the present depth, ring, threads and buffers.
    pub fn metrics(&self) -> Vec<(&'static str, u64)> {
        let mut list = self.shared.metrics.list();
        let state = self.shared.lock();
        list.extend([
            ("depth_batches", state.depth.now() as u64),
            ("ring_batches", state.ring_limit.now() as u64),
            ("threads", state.threads as u64),
            ("buffers_allocated", self.shared.pool.made()),
        ]);
        list
    }

    /// Stops the threads and waits for them, but not for ever: one may hang in a read of dead storage.
    pub fn close(&self) {
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

/// Cached bytes that one batch's windows need.
fn ahead_bytes(feed: &Feed) -> u64 {
    let page = crate::os::page_bytes() as u64;
    let window = feed.sources().iter().map(|source| {
        source.windows.sequence_length().saturating_mul(source.corpus.item_bytes()).saturating_add(page)
    });
    window.max().unwrap_or(page).saturating_mul(feed.share().batch_size)
}

fn default_memory_bytes() -> u64 {
    (limits::available_memory_bytes() / MEMORY_SHARE).min(MEMORY_BYTES)
}

/// So that the state of the stream can be told without a read, also once a file has failed. Corpora of so
/// many files that they are not all open are left for when it is asked for.
fn work_out_fingerprints(shared: &Shared) {
    for source in shared.feed.sources() {
        if !shared.lock().stop && source.corpus.shards().len() <= MAX_FINGERPRINTED_SHARDS {
            // What fails now fails again when it is asked for.
            let _ = source.corpus.fingerprint();
        }
    }
}

fn cores() -> usize {
    std::thread::available_parallelism().map_or(1, std::num::NonZero::get)
}

/// Row after row, each row beginning a document.
fn flatten(mut rows: Vec<(usize, Vec<u64>)>, tokens: u64) -> Vec<u64> {
    rows.sort_unstable();
    let starts = rows.into_iter().map(|(row, starts)| (row as u64 * tokens, starts));
    starts
        .flat_map(|(first, starts)| {
            std::iter::once(first).chain(starts.into_iter().map(move |start| first + start))
        })
        .collect()
}

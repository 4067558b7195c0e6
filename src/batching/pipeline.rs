//! A stream of batches prepared ahead of their use; `mod.rs` has a diagram.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, TryLockError};
use std::time::{Duration, Instant};

use crate::error::{Error, Result};
use crate::fetch::buffers::Lease;
use crate::fetch::crew::{CLOSE_PATIENCE, OnPanic};
use crate::fetch::next::Next;
use crate::os::process::fork;

use super::gatherer::Gatherer;
use super::layout::BatchLayout;
use super::metrics::Metrics;
use super::options::{Documents, Options};
use super::plan::Feed;
use super::planner::plan_ahead;
use super::ring::{Claim, Front, Ring, Taken};
use super::sizes::Sizes;
use super::threads::Shared;

/// For corpora with more files, the fingerprint is computed on request, because not all files stay open.
const MAX_FINGERPRINTED_SHARDS: usize = 1024;
/// A finished batch.
#[derive(Debug)]
pub struct Batch {
    pub buffer: Lease,
    pub rows: usize,
    /// Number of samples that the stream has returned, over all ranks, once this batch is consumed.
    pub position_after: u64,
    /// The positions in the batch where documents begin, in tokens, row after row. Each row begins a document.
    pub documents: Option<Vec<u64>>,
}

#[derive(Debug)]

pub struct Pipeline {
    shared: Arc<Shared>,
    /// The consumer's own gatherer, for when it helps.
    gatherer: Mutex<Gatherer>,
    /// Whether an earlier call waited for the first batch and gave up.
    gave_up: AtomicBool,
    process: u64,
}

impl Pipeline {
    /// Starts at `position`, a number of samples of the stream.
    pub fn start(feed: Feed, options: Options, position: u64) -> Result<Self> {
        let options = options.checked()?;
        let layout = BatchLayout::new(&feed, options.element, options.documents)?;
        let sizes = Sizes::new(&feed, &options, &layout);
        let shared = Arc::new(Shared::new(feed, options, layout, &sizes));
        let pipeline = Self {
            shared: shared.clone(),
            gatherer: Mutex::default(),
            gave_up: AtomicBool::new(false),
            process: fork::generation(),
        };
        let crew = &shared.crew;
        let ours = shared.clone();
        crew.assist("pagestream-plan", move || {
            let _on_panic = OnPanic(&*ours);
            plan_ahead(&ours, position, sizes.max_group_batches);
        })?;
        crew.start("pagestream-gather", &shared)?;
        let ours = shared.clone();
        // Without this thread, the fingerprints are computed on request.
        let _ = crew.assist("pagestream-print", move || work_out_fingerprints(&ours));
        Ok(pipeline)
    }

    /// Returns whether this process started the threads. A forked child did not.
    pub fn is_of_this_process(&self) -> bool {
        self.process == fork::generation()
    }

    /// Returns the next batch, and waits for it for at most `patience`. After an error, the caller starts a new stream.
    pub fn next(&self, patience: Duration) -> Result<Next<Box<Batch>>> {
        self.refuse_in_a_fork()?;
        let begun = Instant::now();
        let mut stalled = self.gave_up.swap(false, Ordering::Relaxed);
        let mut own = self.own_gatherer();
        loop {
            let may_help = own.is_some() && !self.shared.crew.is_slow();
            match self.shared.ring(|ring| ring.take_or_claim(stalled, may_help)) {
                Front::Batch(taken) => return self.hand_out(taken, stalled.then(|| begun.elapsed())),
                Front::End => return Ok(Next::End),
                Front::Failed(error) => return Err(error),
                Front::Pending(Some(claim)) => {
                    own = own.and_then(|mut own| self.lend_a_hand(claim, &mut own).then_some(own));
                    continue;
                }
                Front::Pending(None) => {}
            }
            let left = patience.saturating_sub(begun.elapsed());
            if left.is_zero() {
                self.shared.metrics.stalled(begun.elapsed());
                self.gave_up.store(true, Ordering::Relaxed);
                return Ok(Next::NotYet);
            }
            stalled = true;
            self.shared.wait_for_batch(left);
        }
    }

    fn refuse_in_a_fork(&self) -> Result<()> {
        let message = "the loader's threads belong to the process that this one was forked from";
        if self.is_of_this_process() { Ok(()) } else { Err(Error::argument(message)) }
    }

    /// Fills a chunk in the consumer's thread, which is faster than a wake-up later. Returns whether it did. It does
    /// not if the chunk would probably wait for storage, because the caller wants to notice signals.
    fn lend_a_hand(&self, claim: Claim, gatherer: &mut Gatherer) -> bool {
        let _on_panic = OnPanic(&*self.shared);
        let is_resident = self.shared.is_resident(&claim);
        if is_resident {
            self.shared.fill(claim, gatherer);
        } else {
            self.shared.ring(|ring| ring.give_back(claim));
        }
        is_resident
    }

    /// Returns the consumer's gatherer, unless another consumer is using it.
    fn own_gatherer(&self) -> Option<MutexGuard<'_, Gatherer>> {
        if self.shared.options.without.helping {
            return None;
        }
        match self.gatherer.try_lock() {
            Ok(gatherer) => Some(gatherer),
            Err(TryLockError::Poisoned(gatherer)) => Some(gatherer.into_inner()),
            Err(TryLockError::WouldBlock) => None,
        }
    }

    fn hand_out(&self, taken: Taken, stalled: Option<Duration>) -> Result<Next<Box<Batch>>> {
        let metrics = &self.shared.metrics;
        if let Some(time) = stalled {
            metrics.stalled(time);
            Metrics::add(&metrics.stalls, 1);
        }
        let (buffer, rows) = (taken.buffer?, taken.plan.rows.len());
        Metrics::add(&metrics.batches, 1);
        Metrics::add(&metrics.windows, rows as u64);
        let tokens = self.shared.layout.tokens;
        let documents =
            (self.shared.options.documents != Documents::Ignore).then(|| flatten(taken.documents, tokens));
        let position_after = self.shared.feed.position_after(&taken.plan);
        Ok(Next::Ready(Box::new(Batch { buffer, rows, position_after, documents })))
    }

    /// Returns whether [`Self::next`] would not wait.
    pub fn is_ready(&self) -> bool {
        // In a forked child it returns an error at once.
        !self.is_of_this_process() || self.shared.ring(|ring| ring.is_ready())
    }

    pub fn layout(&self) -> BatchLayout {
        self.shared.layout
    }

    /// Returns the counters, and the present lookahead, ring, threads and buffers. In a forked child it returns only
    /// the counters, as of the fork: there are no threads, and one of them may have held the lock.
    pub fn metrics(&self) -> Vec<(&'static str, u64)> {
        let mut list = self.shared.metrics.list();
        if self.is_of_this_process() {
            let [lookahead, ring, buffers] = self.shared.ring(|ring| ring.lengths());
            list.extend([
                ("lookahead_batches", lookahead),
                ("ring_batches", ring),
                ("threads", self.shared.crew.threads() as u64),
                ("buffers_allocated", buffers),
            ]);
        }
        list
    }

    /// Stops the threads and waits for them, but not forever: a thread may hang in a read from dead storage.
    pub fn close(&self) {
        // Only the first call waits.
        if self.is_of_this_process() && self.shared.ring(|ring| ring.close(None)) {
            self.shared.crew.wait_for_end(CLOSE_PATIENCE);
            self.shared.ring(Ring::clear);
        }
    }
}

impl Drop for Pipeline {
    fn drop(&mut self) {
        if self.is_of_this_process() {
            self.close();
        } else {
            // A forked child has no such threads, and they may have held the lock. Touch nothing.
            std::mem::forget(self.shared.clone());
        }
    }
}

/// Computes the fingerprints, so that the state of the stream is available without a read, even after a file has
/// failed.
fn work_out_fingerprints(shared: &Shared) {
    for source in &shared.feed.sources {
        let is_closed = shared.ring(|ring| ring.is_closed);
        if !is_closed && source.corpus.shards.len() <= MAX_FINGERPRINTED_SHARDS {
            // A failure recurs when the fingerprint is requested.
            let _ = source.corpus.fingerprint();
        }
    }
}

/// Returns the positions where documents begin, row after row. Each row begins a document.
fn flatten(mut rows: Vec<(usize, Vec<u64>)>, tokens: u64) -> Vec<u64> {
    rows.sort_unstable();
    let starts = rows.into_iter().map(|(row, starts)| (row as u64 * tokens, starts));
    starts
        .flat_map(|(first, starts)| {
            std::iter::once(first).chain(starts.into_iter().map(move |start| first + start))
        })
        .collect()
}

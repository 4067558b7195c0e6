//! What the threads of a pipeline share, and how they wake each other.

use std::collections::VecDeque;
use std::sync::atomic::AtomicBool;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::Builder;
use std::time::Duration;

use crate::error::{Error, Result};
use crate::os::memory::parts::Whole;

use super::gatherer::{FileOfFeed, RowChunk};
use super::layout::BatchLayout;
use super::lookahead::PageRange;
use super::metrics::Metrics;
use super::pipeline::Options;
use super::plan::{BatchPlan, Feed};
use super::pool::{Lease, Pool};
use super::sizes::Sizes;

const THREAD_STACK_BYTES: usize = 512 << 10;
/// Buffers that a consumer can hold and still give back to the pool, not to the system: a device loader
/// keeps a few in flight.
const SPARE_BUFFERS: usize = 8;

#[derive(Debug)]
pub(super) struct Shared {
    pub feed: Feed,
    pub options: Options,
    pub layout: BatchLayout,
    pub pool: Pool,
    pub metrics: Metrics,
    /// Gathering threads at most, where their number adapts.
    pub max_gatherers: usize,
    /// Set by gatherers that waited, for the planner.
    pub fetched_late: AtomicBool,
    state: Mutex<State>,
    /// Something to gather.
    work: Condvar,
    /// The first batch of the ring is finished, or no more will come.
    ready: Condvar,
    /// BatchMemory for plans.
    plan: Condvar,
    /// A thread has ended.
    gone: Condvar,
}

#[derive(Debug)]
pub(super) struct State {
    pub stop: bool,
    pub planned: VecDeque<Planned>,
    /// The planner has come to the end, or failed.
    pub ended: Option<Result<()>>,
    pub ring: VecDeque<BatchSlot>,
    /// Number of the ring's first batch.
    pub first: u64,
    /// Batches that are planned and asked for ahead.
    pub lookahead: Length,
    /// Batches that are being filled or are full.
    pub ring_limit: Length,
    /// Threads alive, of all kinds.
    pub threads: usize,
    /// Those of them that gather.
    pub gatherers: usize,
    pub storage: Storage,
    /// Whether the planner finds everything in the page cache.
    pub warm: bool,
    /// Whether the consumer has waited for the first batch of the ring, and gave up.
    pub consumer_waited: bool,
    asleep: Asleep,
}

/// What gatherers find of the storage.
#[derive(Debug, Clone, Copy)]
pub(super) struct Storage {
    /// Rows gathered since this was last looked at.
    pub rows: usize,
    /// Those of them for which a thread had to wait.
    pub waited_rows: usize,
    /// Whether that was so for many, when it was last looked at.
    pub is_slow: bool,
}

/// Who waits to be woken: waking nobody would be a system call as well.
#[derive(Debug, Default)]
struct Asleep {
    gatherers: usize,
    consumers: usize,
    planner: bool,
}

/// A number of batches that adapts.
#[derive(Debug, Clone, Copy)]
pub(super) struct Length {
    first: usize,
    now: usize,
    max: usize,
}

impl Length {
    pub fn new(first: usize, max: usize) -> Self {
        Self { first, now: first, max }
    }

    pub fn now(self) -> usize {
        self.now
    }

    pub fn max(self) -> usize {
        self.max
    }

    pub fn double(&mut self) {
        self.now = (self.now * 2).min(self.max);
    }

    pub fn start_anew(&mut self) {
        self.now = self.first;
    }
}

#[derive(Debug)]
pub(super) struct Planned {
    pub plan: Arc<BatchPlan>,
    /// What can be let go of once it is gathered.
    pub behind: Arc<Vec<PageRange>>,
}

/// What one thread does of a batch in one go.
#[derive(Debug)]
pub(super) enum SlotWork {
    Rows(RowChunk),
    /// Is the file still the one that was opened? Comes when all rows have been read. A piece of its own for
    /// each file, as each is a request to a server.
    Check(FileOfFeed),
}

#[derive(Debug)]
pub(super) struct BatchSlot {
    pub plan: Arc<BatchPlan>,
    pub behind: Arc<Vec<PageRange>>,
    pub whole: Option<Whole>,
    /// What nobody has taken yet, in reverse order.
    pub pieces: Vec<SlotWork>,
    /// Pieces that are not finished.
    pub open: usize,
    /// Files that are to be looked at when all rows are there.
    pub unmapped: Vec<FileOfFeed>,
    pub waited: bool,
    pub documents: Vec<(usize, Vec<u64>)>,
    pub finished: Option<Result<Lease>>,
}

impl State {
    pub fn new(lookahead: Length, ring_limit: Length) -> Self {
        Self {
            stop: false,
            planned: VecDeque::new(),
            ended: None,
            ring: VecDeque::new(),
            first: 0,
            lookahead,
            ring_limit,
            threads: 0,
            gatherers: 0,
            // Until rows have been seen that need not wait: the first ones are given to many threads.
            storage: Storage { rows: 0, waited_rows: 0, is_slow: true },
            warm: false,
            consumer_waited: false,
            asleep: Asleep::default(),
        }
    }

    /// Whether the planner is to go on: with a cold cache at once, with a warm one when half is used up, so
    /// that it wakes less often.
    fn wants_plans(&self) -> bool {
        let lookahead = self.lookahead.now();
        self.planned.len() < if self.warm { lookahead.div_ceil(2) } else { lookahead }
    }
}

impl BatchSlot {
    pub fn new(Planned { plan, behind }: Planned) -> Self {
        Self {
            plan,
            behind,
            whole: None,
            pieces: Vec::new(),
            open: 1,
            unmapped: Vec::new(),
            waited: false,
            documents: Vec::new(),
            finished: None,
        }
    }
}

impl Shared {
    pub fn new(feed: Feed, options: Options, layout: BatchLayout, sizes: &Sizes) -> Self {
        Self {
            feed,
            layout,
            pool: Pool::new(layout.buffer_bytes, sizes.ring.max() + SPARE_BUFFERS),
            metrics: Metrics::default(),
            max_gatherers: sizes.max_gatherers,
            fetched_late: AtomicBool::new(false),
            state: Mutex::new(State::new(sizes.lookahead, sizes.ring)),
            work: Condvar::new(),
            ready: Condvar::new(),
            plan: Condvar::new(),
            gone: Condvar::new(),
            options,
        }
    }

    pub fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits as a gatherer.
    pub fn sleep_for_work<'a>(&self, mut state: MutexGuard<'a, State>) -> MutexGuard<'a, State> {
        state.asleep.gatherers += 1;
        let mut state = self.work.wait(state).unwrap_or_else(PoisonError::into_inner);
        state.asleep.gatherers -= 1;
        state
    }

    /// Waits as a consumer.
    pub fn sleep_for_batch<'a>(
        &self,
        mut state: MutexGuard<'a, State>,
        patience: Duration,
    ) -> MutexGuard<'a, State> {
        state.asleep.consumers += 1;
        let mut state = self.ready.wait_timeout(state, patience).unwrap_or_else(PoisonError::into_inner).0;
        state.asleep.consumers -= 1;
        state
    }

    /// Waits as the planner, until there is room for plans or the pipeline stops.
    pub fn sleep_for_room<'a>(&self, mut state: MutexGuard<'a, State>) -> MutexGuard<'a, State> {
        if state.planned.len() < state.lookahead.now() {
            return state;
        }
        while !state.stop && !state.wants_plans() {
            state.asleep.planner = true;
            state = self.plan.wait(state).unwrap_or_else(PoisonError::into_inner);
            state.asleep.planner = false;
        }
        state
    }

    /// Waits for a thread to end.
    pub fn sleep_for_end<'a>(
        &self,
        state: MutexGuard<'a, State>,
        patience: Duration,
    ) -> MutexGuard<'a, State> {
        self.gone.wait_timeout(state, patience).unwrap_or_else(PoisonError::into_inner).0
    }

    /// Wakes gatherers for so many pieces of work.
    pub fn wake_gatherers(&self, state: &State, pieces: usize) {
        match pieces.min(state.asleep.gatherers) {
            0 => {}
            1 => self.work.notify_one(),
            _ => self.work.notify_all(),
        }
    }

    pub fn wake_consumers(&self, state: &State) {
        if state.asleep.consumers > 0 {
            self.ready.notify_all();
        }
    }

    /// Wakes the planner if it has something to do.
    pub fn wake_planner(&self, state: &State) {
        if state.asleep.planner && state.wants_plans() {
            self.plan.notify_one();
        }
    }

    /// Ends all threads, as soon as each of them looks.
    pub fn stop(&self, state: &mut State) {
        state.stop = true;
        self.work.notify_all();
        self.plan.notify_all();
        self.ready.notify_all();
    }
}

/// While it lives, a panic of this thread ends the pipeline, and the consumer is told.
#[derive(Debug)]
pub(super) struct EndOnPanic<'a>(pub &'a Shared);

impl Drop for EndOnPanic<'_> {
    fn drop(&mut self) {
        if std::thread::panicking() {
            let mut state = self.0.lock();
            state.ended = Some(Err(Error::argument("a thread of the loader panicked; please report it")));
            self.0.stop(&mut state);
        }
    }
}

/// What a thread is there for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Task {
    Plan,
    Gather,
    Fingerprint,
}

impl State {
    /// Comes before [`spawn`]: so many threads of a kind.
    pub fn count_in(&mut self, task: Task, threads: usize) {
        self.threads += threads;
        if task == Task::Gather {
            self.gatherers += threads;
        }
    }

    fn count_out(&mut self, task: Task) {
        self.threads -= 1;
        if task == Task::Gather {
            self.gatherers -= 1;
        }
    }
}

/// A thread, counted out when it ends, however it does.
struct Alive(Arc<Shared>, Task);

impl Drop for Alive {
    fn drop(&mut self) {
        self.0.lock().count_out(self.1);
        self.0.gone.notify_all();
    }
}

/// Starts a thread that is counted in already.
pub(super) fn spawn(
    shared: &Arc<Shared>,
    task: Task,
    body: impl FnOnce(&Arc<Shared>) + Send + 'static,
) -> Result<()> {
    let name = match task {
        Task::Plan => "pagestream-plan",
        Task::Gather => "pagestream-gather",
        Task::Fingerprint => "pagestream-print",
    };
    let ours = shared.clone();
    let thread = Builder::new().name(name.into()).stack_size(THREAD_STACK_BYTES).spawn(move || {
        let alive = Alive(ours, task);
        let _end = EndOnPanic(&alive.0);
        body(&alive.0);
    });
    thread.map(drop).map_err(|error| {
        shared.lock().count_out(task);
        Error::System {
            operation: "cannot start a thread",
            path: std::path::PathBuf::new(),
            errno: error.raw_os_error().unwrap_or(0),
            advice: "the limit on processes and threads (ulimit -u) may be reached".into(),
        }
    })
}

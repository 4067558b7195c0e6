//! The threads of a pipeline and what they share.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::Builder;

use crate::error::{Error, Result};
use crate::mapped_file::{Advice, LetGo};
use crate::os::parts::Whole;

use super::feed::{Feed, Plan};
use super::layout::Layout;
use super::lookahead::{Lookahead, PageRange, page_ranges};
use super::metrics::Metrics;
use super::pipeline::Options;
use super::pool::{Lease, Pool};
use super::worker::{Chunk, Outcome, Worker};

/// Threads that are started to wait for storage at the same time, at most.
const MAX_THREADS: usize = 64;
const THREAD_STACK_BYTES: usize = 512 << 10;
/// Buffers that a consumer can hold and still give back to the pool, not to the system: a device loader
/// keeps a few in flight.
const SPARE_BUFFERS: usize = 8;
/// After this many rows the number of threads is looked at.
const LOOK_AFTER_ROWS: usize = 32;

#[derive(Debug)]
pub(super) struct Shared {
    pub feed: Feed,
    pub options: Options,
    pub layout: Layout,
    pub pool: Pool,
    pub metrics: Metrics,
    /// Set by gatherers that waited, for the planner.
    pub fetched_late: AtomicBool,
    pub state: Mutex<State>,
    /// Something to gather, or an end.
    pub work: Condvar,
    /// The first batch of the ring is finished, or no more will come.
    pub ready: Condvar,
    /// Room for plans.
    pub plan: Condvar,
    /// A thread has ended.
    pub gone: Condvar,
}

#[derive(Debug)]
pub(super) struct State {
    pub stop: bool,
    pub planned: VecDeque<Planned>,
    /// The planner has come to the end, or failed.
    pub ended: Option<Result<()>>,
    pub ring: VecDeque<Slot>,
    /// Number of the ring's first batch.
    pub first: u64,
    pub depth: usize,
    pub ring_limit: usize,
    pub max_depth: usize,
    pub max_ring: usize,
    /// Threads alive, the planner included.
    pub threads: usize,
    /// Rows gathered, and those of them that waited, since the number of threads was looked at.
    pub lately: (usize, usize),
    /// Whether gatherers wait for storage.
    pub waits: bool,
    /// Whether the consumer has waited for the first batch of the ring, and gave up.
    pub consumer_waited: bool,
}

#[derive(Debug)]
pub(super) struct Planned {
    pub plan: Arc<Plan>,
    pub ranges: Arc<Vec<PageRange>>,
}

#[derive(Debug)]
pub(super) struct Slot {
    pub plan: Arc<Plan>,
    pub ranges: Arc<Vec<PageRange>>,
    pub whole: Option<Whole>,
    /// In reverse order.
    pub chunks: Vec<Chunk>,
    /// Chunks that are not finished.
    pub open: usize,
    pub waited: bool,
    pub documents: Vec<(usize, Vec<u64>)>,
    pub finished: Option<Result<Lease>>,
}

impl State {
    /// Depth and ring, now and at most.
    pub fn new((depth, max_depth): (usize, usize), (ring_limit, max_ring): (usize, usize)) -> Self {
        Self {
            stop: false,
            planned: VecDeque::new(),
            ended: None,
            ring: VecDeque::new(),
            first: 0,
            depth,
            ring_limit,
            max_depth,
            max_ring,
            threads: 0,
            lately: (0, 0),
            waits: false,
            consumer_waited: false,
        }
    }
}

impl Slot {
    fn new(Planned { plan, ranges }: Planned) -> Self {
        Self {
            plan,
            ranges,
            whole: None,
            chunks: Vec::new(),
            open: 1,
            waited: false,
            documents: Vec::new(),
            finished: None,
        }
    }
}

impl Shared {
    pub fn new(feed: Feed, options: Options, layout: Layout, state: State) -> Self {
        Self {
            feed,
            layout,
            pool: Pool::new(layout.buffer_bytes, state.max_ring + SPARE_BUFFERS),
            metrics: Metrics::default(),
            fetched_late: AtomicBool::new(false),
            state: Mutex::new(state),
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
}

/// A thread, counted out when it ends, however it does.
struct Alive(Arc<Shared>);

impl Drop for Alive {
    fn drop(&mut self) {
        let mut state = self.0.lock();
        state.threads -= 1;
        if std::thread::panicking() {
            state.stop = true;
            state.ended = Some(Err(Error::argument("a thread of the loader panicked; please report it")));
            self.0.work.notify_all();
            self.0.plan.notify_all();
            self.0.ready.notify_all();
        }
        drop(state);
        self.0.gone.notify_all();
    }
}

pub(super) fn spawn(
    shared: &Arc<Shared>,
    name: &str,
    body: impl FnOnce(&Arc<Shared>) + Send + 'static,
) -> Result<()> {
    let ours = shared.clone();
    shared.lock().threads += 1;
    let thread = Builder::new().name(name.into()).stack_size(THREAD_STACK_BYTES).spawn(move || {
        let alive = Alive(ours);
        body(&alive.0);
    });
    thread.map(drop).map_err(|error| {
        shared.lock().threads -= 1;
        Error::System {
            operation: "cannot start a thread",
            path: std::path::PathBuf::new(),
            errno: error.raw_os_error().unwrap_or(0),
            advice: "the limit on processes and threads (ulimit -u) may be reached".into(),
        }
    })
}

/// The planner.
pub(super) fn plan_ahead(shared: &Arc<Shared>, mut position: u64) {
    let mut lookahead = Lookahead::default();
    // Random order: a fault or a read fetches just its pages. Hints, so a failure is one of the reads.
    let advice = if shared.feed.is_random() { Advice::Random } else { Advice::Normal };
    shared.feed.sources().iter().for_each(|source| drop(source.corpus.advise(advice)));
    loop {
        let mut state = shared.lock();
        while !state.stop && state.planned.len() >= state.depth {
            state = shared.plan.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
        if state.stop {
            return;
        }
        drop(state);
        let planned = plan_one(shared, &mut lookahead, position);
        let mut state = shared.lock();
        match planned {
            Ok(Some(planned)) => {
                position = planned.plan.position + planned.plan.global_rows;
                state.planned.push_back(planned);
                drop(state);
                shared.work.notify_one();
            }
            end => {
                state.ended = Some(end.map(drop));
                drop(state);
                shared.ready.notify_all();
                return;
            }
        }
    }
}

fn plan_one(shared: &Shared, lookahead: &mut Lookahead, position: u64) -> Result<Option<Planned>> {
    let Some(plan) = shared.feed.plan(position)? else { return Ok(None) };
    let ranges = page_ranges(&shared.feed, &plan)?;
    lookahead.fetch(&shared.feed, &ranges, &shared.fetched_late, &shared.metrics)?;
    Ok(Some(Planned { plan: Arc::new(plan), ranges: Arc::new(ranges) }))
}

/// A gatherer.
pub(super) fn gather_until_stopped(shared: &Arc<Shared>) {
    let mut worker = Worker::default();
    let mut state = shared.lock();
    while !state.stop {
        let Some((number, plan, chunk)) = claim(shared, &mut state) else {
            state = shared.work.wait(state).unwrap_or_else(PoisonError::into_inner);
            continue;
        };
        drop(state);
        let outcome = match chunk {
            Ok(mut chunk) => {
                let element = shared.options.element;
                (chunk.rows.len(), worker.gather(&shared.feed, &plan, &mut chunk, element, &shared.metrics))
            }
            Err(error) => (0, Err(error)),
        };
        state = shared.lock();
        finish(shared, &mut state, number, outcome);
        let more = more_threads(shared, &mut state);
        if more > 0 {
            drop(state);
            for _ in 0..more {
                // With those that there are it goes on as well.
                let _ = spawn(shared, "pagestream-gather", gather_until_stopped);
            }
            state = shared.lock();
        }
    }
}

type Claim = (u64, Arc<Plan>, Result<Chunk>);

/// The next piece of work: of the first batch that has one, else of a new one if the ring has room.
fn claim(shared: &Shared, state: &mut State) -> Option<Claim> {
    let first = state.first;
    let open = state.ring.iter_mut().enumerate().find_map(|(index, slot)| {
        let chunk = slot.chunks.pop()?;
        Some((first + index as u64, slot.plan.clone(), Ok(chunk)))
    });
    if open.is_some() || state.ring.len() >= state.ring_limit {
        return open;
    }
    let planned = state.planned.pop_front()?;
    shared.plan.notify_one();
    let number = first + state.ring.len() as u64;
    let mut slot = Slot::new(planned);
    let rows = slot.plan.rows.len();
    // Where threads wait for storage each takes one row, so that many wait at the same time.
    let chunk_rows = if state.waits { 1 } else { rows.div_ceil(2 * state.threads.max(1)) };
    let made = shared.pool.take().and_then(|block| shared.layout.chunks(block, rows, chunk_rows));
    let plan = slot.plan.clone();
    let claimed = match made {
        Ok((whole, chunks)) if chunks.is_empty() => {
            // This rank has no row of a short last batch.
            slot.finished = whole.join().ok().map(|block| Ok(shared.pool.lease(block)));
            slot.open = 0;
            state.ring.push_back(slot);
            shared.ready.notify_all();
            return claim(shared, state);
        }
        Ok((whole, mut chunks)) => {
            slot.open = chunks.len();
            chunks.reverse();
            slot.whole = Some(whole);
            let chunk = chunks.pop();
            slot.chunks = chunks;
            chunk.ok_or_else(|| Error::argument("a batch without rows"))
        }
        Err(error) => Err(error),
    };
    state.ring.push_back(slot);
    if state.ring.back().is_some_and(|slot| !slot.chunks.is_empty()) {
        shared.work.notify_all();
    }
    Some((number, plan, claimed))
}

fn finish(shared: &Shared, state: &mut State, number: u64, (rows, outcome): (usize, Result<Outcome>)) {
    let Some(index) = number.checked_sub(state.first) else { return };
    let Some(slot) = state.ring.get_mut(index as usize) else { return };
    slot.open -= 1;
    match outcome {
        Ok(outcome) => {
            slot.waited |= outcome.waited;
            slot.documents.extend(outcome.documents);
            state.lately.0 += rows;
            if outcome.waited {
                state.lately.1 += rows;
                shared.fetched_late.store(true, Ordering::Relaxed);
            }
        }
        Err(error) => {
            slot.finished.get_or_insert(Err(error));
        }
    }
    let Some(slot) = state.ring.get_mut(index as usize) else { return };
    if slot.open > 0 {
        return;
    }
    if slot.finished.is_none() {
        let whole = slot.whole.take().map(Whole::join);
        slot.finished = Some(match whole {
            Some(Ok(block)) => Ok(shared.pool.lease(block)),
            _ => Err(Error::argument("a part of the batch is still in use")),
        });
    }
    if let Some(what) = shared.options.let_go {
        let_go(shared, &slot.ranges, what);
    }
    if index == 0 {
        shared.ready.notify_all();
    }
}

fn let_go(shared: &Shared, ranges: &[PageRange], what: LetGo) {
    for range in ranges {
        if let Ok(opened) = shared.feed.sources()[range.source].corpus.opened(range.shard) {
            let stop = range.stop.min(opened.size());
            opened.let_go(range.start, stop.saturating_sub(range.start), what);
        }
    }
}

/// How many threads to start: where a quarter of the rows had to wait for storage, as many as there are.
fn more_threads(shared: &Shared, state: &mut State) -> usize {
    let (rows, waited) = state.lately;
    if rows < LOOK_AFTER_ROWS {
        return 0;
    }
    state.lately = (0, 0);
    state.waits = waited * 4 >= rows;
    if !state.waits || shared.options.threads.is_some() {
        return 0;
    }
    let gatherers = state.threads.saturating_sub(1);
    gatherers.min(MAX_THREADS.saturating_sub(gatherers))
}

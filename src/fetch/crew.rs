//! Threads that share items of work. Their number grows while storage is slow.

use std::ops::Deref;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::{Builder, Scope};
use std::time::{Duration, Instant};

use crate::error::{Error, Result};
use crate::os::process::thread;
use crate::os::process::usage::Usage;

/// Time between two calls of a [`KeepGoing`]. Short enough for Ctrl-C, and long enough to cost nothing.
pub const PERIOD: Duration = Duration::from_millis(50);

/// Time for which closing waits for threads in a read: a thread may hang in a read from dead storage.
pub const CLOSE_PATIENCE: Duration = Duration::from_millis(500);

/// Called now and then by the thread that called into this crate. Returning `false` stops the work.
pub type KeepGoing<'a> = dyn FnMut() -> bool + 'a;

/// Number of items after which the crew decides again whether storage is slow.
const DECIDE_AFTER_ITEMS: usize = 32;
/// Storage counts as slow if at least one in this many items made its thread wait.
const SLOW_SHARE: usize = 4;
const STACK_BYTES: usize = 512 << 10;

/// Maximum number of threads that a caller can request.
pub const MAX_GIVEN_THREADS: usize = 1024;

/// Checks a requested number of threads.
pub fn check_threads(threads: usize) -> Result<()> {
    if (1..=MAX_GIVEN_THREADS).contains(&threads) {
        return Ok(());
    }
    Err(Error::argument(format!("threads must be 1 to {MAX_GIVEN_THREADS}, not {threads}")))
}

/// Limits on the number of workers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Limits {
    /// Limit while storage is calm.
    pub first: usize,
    /// Limit while storage is slow.
    pub most: usize,
}

/// The outcome of one step of a thread.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
pub struct Step {
    pub items: usize,
    /// Whether the thread waited for storage during the step; see [`Wait`].
    pub waited: bool,
}

/// Work that several threads share.
pub trait Work: Sync {
    /// State that a thread keeps from step to step.
    type Tools: Default;

    /// Does the next items, waiting for them if necessary. Returns `None` once there will be no more.
    fn step(&self, tools: &mut Self::Tools) -> Option<Step>;

    /// Called when a thread leaves because storage is calm. Another thread must take over its next item.
    fn leave(&self) {}

    /// Called by a thread that panics in a step.
    fn panicked(&self) {}
}

/// Notifies the work if this thread panics.
#[derive(Debug)]
pub struct OnPanic<'a, W: Work>(pub &'a W);

impl<W: Work> Drop for OnPanic<'_, W> {
    fn drop(&mut self) {
        if std::thread::panicking() {
            self.0.panicked();
        }
    }
}

/// Minimum sleep that counts as a storage wait. Locks and page-table changes cause shorter sleeps.
const SHORTEST_WAIT: Duration = Duration::from_micros(200);
/// Assumed minimum copy rate.
const COPY_BYTES_PER_NANOSECOND: u64 = 4;

/// Measures whether the calling thread waits for storage.
#[derive(Debug, Clone, Copy)]
pub struct Wait {
    usage: Usage,
    begun: Instant,
}

impl Wait {
    pub fn begin() -> Self {
        Self { usage: Usage::of_thread(), begun: Instant::now() }
    }

    /// Returns whether the thread waited since [`Self::begin`] while it copied `bytes`, and how many major page
    /// faults it had.
    ///
    /// The thread waited if it had a major fault, or if it slept and took much longer than the copy does.
    pub fn end(self, bytes: u64) -> (bool, u64) {
        let spent = Usage::of_thread().since(self.usage);
        let copying = SHORTEST_WAIT + Duration::from_nanos(bytes / COPY_BYTES_PER_NANOSECOND);
        let has_slept = spent.waits > 0 && self.begun.elapsed() > copying;
        (spent.major_faults > 0 || has_slept, spent.major_faults)
    }
}

/// The purpose of a thread.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Role {
    /// Does steps of the work. The limits apply to workers.
    Worker,
    /// Does any other task that the crew waits for at the end.
    Assistant,
}

/// The threads of one piece of work.
#[derive(Debug)]
pub struct Crew {
    limits: Limits,
    count: Mutex<Count>,
    /// The latest decision.
    is_slow: AtomicBool,
    gone: Condvar,
}

#[derive(Debug)]
struct Count {
    threads: usize,
    workers: usize,
    /// Items since the last decision.
    items: usize,
    /// Number of items whose thread waited for storage.
    waited_items: usize,
    is_warm: bool,
}

#[derive(Debug, PartialEq, Eq)]
enum Decision {
    None,
    Calm,
    /// Storage is slow: start this many threads, already counted.
    Grow(usize),
}

impl Count {
    fn note(&mut self, step: Step, limits: Limits) -> Decision {
        self.items += step.items;
        self.waited_items += if step.waited { step.items } else { 0 };
        if self.items < DECIDE_AFTER_ITEMS && self.waited_items < self.workers.max(1) {
            return Decision::None;
        }
        // Threads also wait for each other while the process's mappings change. If the cache is warm, every wait has
        // this cause.
        let is_slow = !self.is_warm && self.waited_items * SLOW_SHARE >= self.items;
        (self.items, self.waited_items) = (0, 0);
        if !is_slow {
            return Decision::Calm;
        }
        let more = limits.most.saturating_sub(self.workers);
        self.enter(Role::Worker, more);
        Decision::Grow(more)
    }

    fn enter(&mut self, role: Role, threads: usize) {
        self.threads += threads;
        self.workers += if role == Role::Worker { threads } else { 0 };
    }

    fn leave(&mut self, role: Role) {
        self.threads -= 1;
        self.workers -= usize::from(role == Role::Worker);
    }
}

/// A thread that is counted as a member of the crew. Dropping it removes the thread from the count, even if the start
/// failed.
struct CrewMember<C: Deref<Target = Crew>>(C, Role);

impl<C: Deref<Target = Crew>> Drop for CrewMember<C> {
    fn drop(&mut self) {
        self.0.lock().leave(self.1);
        self.0.gone.notify_all();
    }
}

impl CrewMember<Arc<Crew>> {
    /// Starts the thread, detached.
    fn spawn(self, name: &str, body: impl FnOnce() + Send + 'static) -> Result<()> {
        let started = thread::start(Builder::new().name(name.into()).stack_size(STACK_BYTES), move || {
            let _member = self;
            body();
        });
        started.map_err(|error| {
            let errno = error.raw_os_error().unwrap_or(0);
            let advice = "the limit on threads (ulimit -u) or on address space (ulimit -v) may be reached";
            Error::system("cannot start a thread", "", errno, advice)
        })
    }
}

impl Crew {
    /// Creates a crew without threads. Storage counts as slow until the first decision, so that the first items are
    /// spread over many threads.
    pub fn new(limits: Limits) -> Self {
        let count = Count { threads: 0, workers: 0, items: 0, waited_items: 0, is_warm: false };
        Self { limits, count: Mutex::new(count), is_slow: AtomicBool::new(true), gone: Condvar::new() }
    }

    fn lock(&self) -> MutexGuard<'_, Count> {
        self.count.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub fn is_slow(&self) -> bool {
        self.is_slow.load(Ordering::Relaxed)
    }

    /// Returns whether waits must be measured. They have no effect on a crew that cannot grow.
    pub fn can_grow(&self) -> bool {
        self.limits.first < self.limits.most
    }

    /// Ignores waits while the cache is warm.
    pub fn set_warm(&self, is_warm: bool) {
        self.lock().is_warm = is_warm;
    }

    /// Returns the number of live threads of both roles.
    pub fn threads(&self) -> usize {
        self.lock().threads
    }

    /// Starts a detached thread that does no steps. [`Self::wait_for_end`] awaits it.
    pub fn assist(self: &Arc<Self>, name: &str, body: impl FnOnce() + Send + 'static) -> Result<()> {
        self.lock().enter(Role::Assistant, 1);
        CrewMember(self.clone(), Role::Assistant).spawn(name, body)
    }

    /// Starts the first workers of `work`, which live until it has no more steps.
    pub fn start<W: Work + Send + 'static>(
        self: &Arc<Self>,
        name: &'static str,
        work: &Arc<W>,
    ) -> Result<()> {
        // Count all workers before one runs. Otherwise a slow first item would start more workers.
        self.lock().enter(Role::Worker, self.limits.first);
        let members: Vec<_> =
            (0..self.limits.first).map(|_| CrewMember(self.clone(), Role::Worker)).collect();
        members.into_iter().try_for_each(|member| self.start_worker(member, name, work, false))
    }

    fn start_worker<W: Work + Send + 'static>(
        self: &Arc<Self>,
        member: CrewMember<Arc<Self>>,
        name: &'static str,
        work: &Arc<W>,
        is_extra: bool,
    ) -> Result<()> {
        let (crew, ours) = (self.clone(), work.clone());
        member.spawn(name, move || {
            // If no thread can be started, the existing ones do all the work.
            let start = || drop(crew.start_worker(CrewMember(crew.clone(), Role::Worker), name, &ours, true));
            crew.serve(&*ours, is_extra, start, || {});
        })
    }

    /// Does all of `work` in this thread and in other threads, which end before this call returns. Asks `keep_going` once
    /// per [`PERIOD`], and calls `stop` if the caller wants to stop.
    pub fn run<W: Work>(
        &self,
        name: &'static str,
        work: &W,
        keep_going: &mut KeepGoing<'_>,
        stop: impl Fn(),
    ) {
        let mut asked = Instant::now();
        let ask = || {
            if asked.elapsed() >= PERIOD {
                asked = Instant::now();
                if !keep_going() {
                    stop();
                }
            }
        };
        std::thread::scope(|scope| {
            self.lock().enter(Role::Worker, 1);
            let _member = CrewMember(self, Role::Worker);
            self.serve(work, false, || self.help(name, work, scope), ask);
        });
    }

    fn help<'scope, W: Work>(
        &'scope self,
        name: &'static str,
        work: &'scope W,
        scope: &'scope Scope<'scope, '_>,
    ) {
        let member = CrewMember(self, Role::Worker);
        let builder = Builder::new().name(name.into()).stack_size(STACK_BYTES);
        // If no thread can be started, the existing ones do all the work.
        let _ = thread::start_scoped(builder, scope, move || {
            let _member = member;
            self.serve(work, true, || self.help(name, work, scope), || {});
        });
    }

    /// Runs steps until none is left. An extra thread also stops once storage is calm.
    fn serve<W: Work>(&self, work: &W, is_extra: bool, start: impl Fn(), mut after_step: impl FnMut()) {
        let _on_panic = OnPanic(work);
        let mut tools = W::Tools::default();
        while let Some(step) = work.step(&mut tools) {
            let decision = self.lock().note(step, self.limits);
            if decision != Decision::None {
                self.is_slow.store(decision != Decision::Calm, Ordering::Relaxed);
            }
            match decision {
                Decision::Grow(more) => (0..more).for_each(|_| start()),
                Decision::Calm if is_extra => return work.leave(),
                Decision::Calm | Decision::None => {}
            }
            after_step();
        }
    }

    /// Waits until all threads have ended, but at most for `patience`, because a read from dead storage may hang
    /// forever.
    pub fn wait_for_end(&self, patience: Duration) {
        let deadline = Instant::now() + patience;
        let mut count = self.lock();
        while count.threads > 0 {
            let left = deadline.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return;
            }
            count = self.gone.wait_timeout(count, left).unwrap_or_else(PoisonError::into_inner).0;
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::AtomicUsize;

    use super::*;

    const LIMITS: Limits = Limits { first: 1, most: 8 };

    fn count(workers: usize) -> Count {
        Count { threads: workers, workers, items: 0, waited_items: 0, is_warm: false }
    }

    #[test]
    fn a_wait_of_the_only_thread_starts_all_others() {
        let mut crew = count(1);
        assert_eq!(crew.note(Step { items: 1, waited: true }, LIMITS), Decision::Grow(7));
        assert_eq!((crew.workers, crew.threads), (8, 8));
    }

    #[test]
    fn one_wait_among_many_items_is_not_slow() {
        let mut crew = count(4);
        assert_eq!(crew.note(Step { items: 1, waited: true }, LIMITS), Decision::None);
        assert_eq!(crew.note(Step { items: 31, waited: false }, LIMITS), Decision::Calm);
    }

    #[test]
    fn a_warm_cache_is_never_slow() {
        let mut crew = count(2);
        crew.is_warm = true;
        assert_eq!(crew.note(Step { items: 64, waited: true }, LIMITS), Decision::Calm);
    }

    #[test]
    fn assistants_do_not_count_as_workers() {
        let mut crew = count(0);
        crew.enter(Role::Assistant, 2);
        crew.enter(Role::Worker, 3);
        assert_eq!((crew.threads, crew.workers), (5, 3));
        crew.leave(Role::Assistant);
        crew.leave(Role::Worker);
        assert_eq!((crew.threads, crew.workers), (3, 2));
    }

    /// Items of work. All but the last 500 report a wait.
    struct Items {
        left: AtomicUsize,
        done: AtomicUsize,
    }

    impl Work for Items {
        type Tools = ();

        fn step(&self, (): &mut ()) -> Option<Step> {
            let take = |left: usize| left.checked_sub(1);
            let left = self.left.fetch_update(Ordering::Relaxed, Ordering::Relaxed, take).ok()?;
            self.done.fetch_add(1, Ordering::Relaxed);
            Some(Step { items: 1, waited: left > 500 })
        }
    }

    #[test]
    fn every_item_is_done_once_while_threads_come_and_go() {
        for items in [0, 1, 2, 100, 1000] {
            let work = Items { left: AtomicUsize::new(items), done: AtomicUsize::new(0) };
            let crew = Crew::new(LIMITS);
            crew.run("items", &work, &mut || true, || {});
            assert_eq!(work.done.into_inner(), items);
            assert_eq!(crew.threads(), 0);
        }
    }

    #[test]
    fn threads_of_their_own_end_with_the_work() {
        let crew = Arc::new(Crew::new(Limits { first: 3, most: 5 }));
        let work = Arc::new(Items { left: AtomicUsize::new(1000), done: AtomicUsize::new(0) });
        crew.start("items", &work).expect("threads");
        crew.wait_for_end(Duration::from_secs(60));
        assert_eq!((crew.threads(), work.done.load(Ordering::Relaxed)), (0, 1000));
    }

    /// Endless items. Each takes longer than a period, until it is stopped.
    #[derive(Default)]
    struct Endless {
        done: AtomicUsize,
        is_over: AtomicBool,
    }

    impl Work for Endless {
        type Tools = ();

        fn step(&self, (): &mut ()) -> Option<Step> {
            if self.is_over.load(Ordering::Relaxed) {
                return None;
            }
            std::thread::sleep(PERIOD);
            self.done.fetch_add(1, Ordering::Relaxed);
            Some(Step { items: 1, waited: false })
        }
    }

    #[test]
    fn the_caller_is_asked_after_a_period_and_stops_the_work() {
        let (work, mut asked) = (Endless::default(), 0);
        let crew = Crew::new(Limits { first: 1, most: 1 });
        let mut keep_going = || {
            asked += 1;
            asked < 3
        };
        crew.run("items", &work, &mut keep_going, || work.is_over.store(true, Ordering::Relaxed));
        assert_eq!((asked, work.done.into_inner(), crew.threads()), (3, 3, 0));
    }

    /// Records the number of the crew's workers at each of a few slow items.
    struct SlowItems {
        crew: Arc<Crew>,
        left: AtomicUsize,
        workers: Mutex<Vec<usize>>,
    }

    impl Work for SlowItems {
        type Tools = ();

        fn step(&self, (): &mut ()) -> Option<Step> {
            let take = |left: usize| left.checked_sub(1);
            self.left.fetch_update(Ordering::Relaxed, Ordering::Relaxed, take).ok()?;
            self.workers.lock().expect("no panic").push(self.crew.lock().workers);
            Some(Step { items: 1, waited: true })
        }
    }

    #[test]
    fn a_slow_first_item_starts_no_more_threads_than_the_limit() {
        let limits = Limits { first: 8, most: 8 };
        for _ in 0..10 {
            let crew = Arc::new(Crew::new(limits));
            let (left, workers) = (AtomicUsize::new(64), Mutex::default());
            let work = Arc::new(SlowItems { crew: crew.clone(), left, workers });
            crew.start("items", &work).expect("threads");
            crew.wait_for_end(Duration::from_secs(60));
            assert_eq!(work.workers.lock().expect("no panic")[0], limits.first);
            assert!(work.workers.lock().expect("no panic").iter().all(|&workers| workers <= limits.most));
        }
    }
}

//! Threads that do items of work, and grow in number while storage is slow.

use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::{Builder, Scope};
use std::time::{Duration, Instant};

use crate::error::{Error, Result};
use crate::os::process::usage::Usage;

use super::cancel::Cancel;

/// After this many items the crew decides anew whether storage is slow.
const DECIDE_AFTER_ITEMS: usize = 32;
/// Storage is slow where one item of this many made its thread wait.
const SLOW_SHARE: usize = 4;
const STACK_BYTES: usize = 512 << 10;

/// Numbers of threads that work.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Limits {
    /// While storage is calm.
    pub first: usize,
    /// While storage is slow.
    pub most: usize,
}

/// What a thread did in one step.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
pub struct Step {
    pub items: usize,
    /// Whether the thread slept on the way; see [`Wait`].
    pub waited: bool,
}

/// Work that several threads share.
pub trait Work: Sync {
    /// What a thread keeps from step to step.
    type Tools: Default;

    /// Does the next items, or waits for some; `None` once there will be no more.
    fn step(&self, tools: &mut Self::Tools) -> Option<Step>;

    /// Called when a thread leaves because storage is calm: what it would have done next is another's.
    fn leave(&self) {}

    /// Called by a thread that panics in a step.
    fn panicked(&self) {}
}

/// Tells the work of a panic of this thread.
struct OnPanic<'a, W: Work>(&'a W);

impl<W: Work> Drop for OnPanic<'_, W> {
    fn drop(&mut self) {
        if std::thread::panicking() {
            self.0.panicked();
        }
    }
}

/// A sleep that is shorter is one for a lock, or for the memory of the process.
const SHORTEST_WAIT: Duration = Duration::from_micros(200);
/// What copying takes at most, for each byte.
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

    /// Whether the thread waited since [`Self::begin`] while it copied `bytes`, and its major page faults.
    ///
    /// It waited if it had a major fault, or if it slept and took much longer than the copy does.
    pub fn end(self, bytes: u64) -> (bool, u64) {
        let spent = Usage::of_thread().since(self.usage);
        let copying = SHORTEST_WAIT + Duration::from_nanos(bytes / COPY_BYTES_PER_NANOSECOND);
        let has_slept = spent.waits > 0 && self.begun.elapsed() > copying;
        (spent.major_faults > 0 || has_slept, spent.major_faults)
    }
}

/// What a thread is there for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Role {
    /// Does steps of the work; the limits are about these.
    Worker,
    /// Anything else that the crew waits for at the end.
    Assistant,
}

/// The threads of one piece of work.
#[derive(Debug)]
pub struct Crew {
    limits: Limits,
    count: Mutex<Count>,
    /// As decided last.
    is_slow: AtomicBool,
    gone: Condvar,
}

#[derive(Debug)]
struct Count {
    threads: usize,
    workers: usize,
    /// Items since the last decision, and those of them whose thread waited.
    items: usize,
    waited_items: usize,
    is_warm: bool,
}

#[derive(Debug, PartialEq, Eq)]
enum Decision {
    None,
    Calm,
    /// Storage is slow, and so many threads are to be started. They are counted already.
    Grow(usize),
}

impl Count {
    fn note(&mut self, step: Step, limits: Limits) -> Decision {
        self.items += step.items;
        self.waited_items += if step.waited { step.items } else { 0 };
        if self.items < DECIDE_AFTER_ITEMS && self.waited_items < self.workers.max(1) {
            return Decision::None;
        }
        // Threads also wait for each other when the memory of the process changes, which a warm cache tells
        // apart.
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

/// A thread that counts as one of the crew's until this is dropped.
struct CrewMember<'a>(&'a Crew, Role);

impl Drop for CrewMember<'_> {
    fn drop(&mut self) {
        self.0.lock().leave(self.1);
        self.0.gone.notify_all();
    }
}

impl Crew {
    /// Storage counts as slow until items were done that did not wait: the first ones go to many threads.
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

    /// Whether waits are to be measured: they change nothing where there are no more threads.
    pub fn can_grow(&self) -> bool {
        self.limits.first < self.limits.most
    }

    /// While the cache is warm no wait is taken for one for storage.
    pub fn set_warm(&self, is_warm: bool) {
        self.lock().is_warm = is_warm;
    }

    /// Threads alive, of both roles.
    pub fn threads(&self) -> usize {
        self.lock().threads
    }

    /// Starts a thread of its own life, which [`Self::wait_for_end`] waits for.
    pub fn spawn(
        self: &Arc<Self>,
        role: Role,
        name: &str,
        body: impl FnOnce() + Send + 'static,
    ) -> Result<()> {
        self.lock().enter(role, 1);
        self.spawn_counted(role, name, body)
    }

    fn spawn_counted(
        self: &Arc<Self>,
        role: Role,
        name: &str,
        body: impl FnOnce() + Send + 'static,
    ) -> Result<()> {
        let ours = self.clone();
        let thread = Builder::new().name(name.into()).stack_size(STACK_BYTES).spawn(move || {
            let _member = CrewMember(&ours, role);
            body();
        });
        thread.map(drop).map_err(|error| {
            drop(CrewMember(self, role));
            Error::System {
                operation: "cannot start a thread",
                path: PathBuf::new(),
                errno: error.raw_os_error().unwrap_or(0),
                advice: "the limit on processes and threads (ulimit -u) may be reached".into(),
            }
        })
    }

    /// Starts the first workers of `work`, which live until it has no more steps.
    pub fn start<W: Work + Send + 'static>(
        self: &Arc<Self>,
        name: &'static str,
        work: &Arc<W>,
    ) -> Result<()> {
        for _ in 0..self.limits.first {
            self.lock().enter(Role::Worker, 1);
            self.start_worker(name, work, false)?;
        }
        Ok(())
    }

    fn start_worker<W: Work + Send + 'static>(
        self: &Arc<Self>,
        name: &'static str,
        work: &Arc<W>,
        is_extra: bool,
    ) -> Result<()> {
        let (crew, ours) = (self.clone(), work.clone());
        self.spawn_counted(Role::Worker, name, move || {
            // Where no more threads can be started, those that there are do it all.
            let start = || drop(crew.start_worker(name, &ours, true));
            crew.serve(&*ours, is_extra, start, || {});
        })
    }

    /// Does all of `work`, in this thread and in others that end with this call.
    pub fn run<W: Work>(&self, name: &'static str, work: &W, mut cancel: Cancel<'_, '_>, stop: impl Fn()) {
        std::thread::scope(|scope| {
            self.lock().enter(Role::Worker, 1);
            let _member = CrewMember(self, Role::Worker);
            self.serve(
                work,
                false,
                || self.help(name, work, scope),
                || {
                    if cancel.is_wanted() {
                        stop();
                    }
                },
            );
        });
    }

    fn help<'scope, W: Work>(
        &'scope self,
        name: &'static str,
        work: &'scope W,
        scope: &'scope Scope<'scope, '_>,
    ) {
        let thread = Builder::new().name(name.into()).stack_size(STACK_BYTES);
        let spawned = thread.spawn_scoped(scope, move || {
            let _member = CrewMember(self, Role::Worker);
            self.serve(work, true, || self.help(name, work, scope), || {});
        });
        if spawned.is_err() {
            drop(CrewMember(self, Role::Worker));
        }
    }

    /// Steps until there are no more, or until storage is calm and the thread is an additional one.
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

    /// Waits for all threads, but not for ever: one may hang in a read of dead storage.
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
    fn a_wait_of_the_only_thread_calls_all_others_at_once() {
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

    /// So many items, each of which waits as long as `slow` says so.
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
            crew.run("items", &work, Cancel::new(&mut || true), || {});
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
}

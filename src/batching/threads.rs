//! State shared by a pipeline's threads: the locked ring and the condition variables.

use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use crate::fetch::buffers::Pool;
use crate::fetch::crew::Crew;

use super::layout::BatchLayout;
use super::metrics::Metrics;
use super::options::Options;
use super::plan::Feed;
use super::ring::{Claim, News, Ring};
use super::sizes::Sizes;

#[derive(Debug)]
pub(super) struct Shared {
    pub feed: Feed,
    pub options: Options,
    pub layout: BatchLayout,
    pub metrics: Metrics,
    pub crew: Arc<Crew>,
    watched: Mutex<Watched>,
    /// Signals work for gatherers.
    work: Condvar,
    /// Signals that the first batch is finished, or that no more will come.
    ready: Condvar,
    /// Signals space for plans.
    space: Condvar,
}

/// The ring, and the numbers of sleeping threads: a wake-up costs a system call even if no thread sleeps.
#[derive(Debug)]
struct Watched {
    ring: Ring,
    gatherers_asleep: usize,
    consumers_asleep: usize,
    planner_asleep: bool,
}

impl Shared {
    pub fn new(feed: Feed, options: Options, layout: BatchLayout, sizes: &Sizes) -> Self {
        let pool = Pool::new(
            layout.buffer_bytes,
            (sizes.ring.most().saturating_add(options.spare_buffers)) as usize,
        );
        let ring = Ring::new(layout, pool, sizes.lookahead, sizes.ring, !options.without.adapting);
        let watched = Watched { ring, gatherers_asleep: 0, consumers_asleep: 0, planner_asleep: false };
        Self {
            feed,
            layout,
            metrics: Metrics::default(),
            crew: Arc::new(Crew::new(sizes.gatherers)),
            watched: Mutex::new(watched),
            work: Condvar::new(),
            ready: Condvar::new(),
            space: Condvar::new(),
            options,
        }
    }

    fn lock(&self) -> MutexGuard<'_, Watched> {
        self.watched.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Changes the ring, and wakes the threads that can proceed.
    pub fn ring<T>(&self, act: impl FnOnce(&mut Ring) -> T) -> T {
        let mut watched = self.lock();
        let result = act(&mut watched.ring);
        self.announce(&mut watched);
        result
    }

    fn announce(&self, watched: &mut Watched) {
        let News { work, is_ready, has_room } = watched.ring.take_news();
        match work.min(watched.gatherers_asleep) {
            0 => {}
            1 => self.work.notify_one(),
            _ => self.work.notify_all(),
        }
        if is_ready && watched.consumers_asleep > 0 {
            self.ready.notify_all();
        }
        if has_room && watched.planner_asleep && (watched.ring.is_closed || watched.ring.wants_plans()) {
            self.space.notify_one();
        }
    }

    /// Waits for work as a gatherer. Returns `None` once the pipeline is closed.
    pub fn wait_for_work(&self) -> Option<Claim> {
        let mut watched = self.lock();
        loop {
            let is_slow = self.crew.is_slow() && !self.options.without.small_chunks;
            let claim = watched.ring.claim(is_slow);
            self.announce(&mut watched);
            if claim.is_some() || watched.ring.is_closed {
                return claim;
            }
            watched.gatherers_asleep += 1;
            watched = self.work.wait(watched).unwrap_or_else(PoisonError::into_inner);
            watched.gatherers_asleep -= 1;
        }
    }

    /// Waits for a batch as a consumer, for at most `patience`.
    pub fn wait_for_batch(&self, patience: Duration) {
        let mut watched = self.lock();
        if watched.ring.is_ready() {
            return;
        }
        watched.consumers_asleep += 1;
        watched = self.ready.wait_timeout(watched, patience).unwrap_or_else(PoisonError::into_inner).0;
        watched.consumers_asleep -= 1;
    }

    /// Waits as the planner until there is space for plans. Returns false once the pipeline is closed.
    pub fn wait_for_room(&self) -> bool {
        let mut watched = self.lock();
        if !watched.ring.has_room_for_plans() {
            while !watched.ring.is_closed && !watched.ring.wants_plans() {
                watched.planner_asleep = true;
                watched = self.space.wait(watched).unwrap_or_else(PoisonError::into_inner);
                watched.planner_asleep = false;
            }
        }
        !watched.ring.is_closed
    }
}

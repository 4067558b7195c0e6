//! [`IdleStore`]: what was released a moment ago, and may be needed again.
//!
//! ```text
//!   announce ──> hold ──> held ──(no longer likely)──> kept ──(half a second)──> resting ──(two seconds)──> dropped
//!   put ───────────────────────────────────────────────┘
//! ```
//!
//! What is held, kept or resting can be taken. Where there is too much, the oldest is dropped. A thread moves values on; it
//! runs only while there are some. A taker that has waited in vain for what was announced makes its own: then that is not
//! held any more.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::thread::Builder;
use std::time::{Duration, Instant};

use crate::os::process::fork;

/// How long something is kept as it is.
const KEPT_FOR: Duration = Duration::from_millis(500);
/// How long it rests. A consumer may compute for a while, or have a busy processor.
const RESTS_FOR: Duration = Duration::from_secs(2);
/// How long a value is waited for.
const PATIENCE: Duration = Duration::from_secs(1);
/// Time between two looks at what is held.
const LOOK_EVERY: Duration = Duration::from_millis(100);
/// Values at a time, and how many of them may rest.
const MAX_VALUES: usize = 8;
const MAX_RESTING: usize = 2;
const STACK_BYTES: usize = 128 << 10;

/// What can be kept without doing anything.
pub trait Rest {
    /// Stops what goes on until the value is used again.
    fn rest(&self);
}

/// Values by key, each for a moment.
pub struct IdleStore<K, V> {
    state: Mutex<IdleState<K, V>>,
}

struct IdleState<K, V> {
    /// The oldest first.
    values: Vec<IdleValue<K, V>>,
    /// Keys whose values are on their way, and the process, as a number of forks, that brings them.
    expected: Vec<(K, u64)>,
    /// The process whose thread drops values.
    dropper: Option<u64>,
}

/// A value that is on its way, until this is dropped.
pub struct ExpectedValue<K: PartialEq + Send + 'static, V: Send + 'static> {
    store: &'static IdleStore<K, V>,
    key: K,
}

impl<K: PartialEq + Send + Clone, V: Send + Rest> ExpectedValue<K, V> {
    /// Keeps the value for a moment after `is_likely` has become false. Returns false, and drops it, if somebody has waited
    /// for it in vain.
    pub fn hold(&self, value: V, is_likely: Arc<AtomicBool>) -> bool {
        let value = IdleValue { key: self.key.clone(), value, until: Until::Held(is_likely) };
        // Dropped outside of the lock.
        let (is_held, _dropped) = fork::with_lock(&self.store.state, |state| match self.place_in(state) {
            Some(_) => (true, state.add(value)),
            None => (false, Some(value)),
        });
        if is_held {
            self.store.start_dropper();
        }
        is_held
    }
}

impl<K: PartialEq + Send, V: Send> ExpectedValue<K, V> {
    fn place_in(&self, state: &IdleState<K, V>) -> Option<usize> {
        state.expected.iter().position(|(key, by)| *key == self.key && *by == fork::generation())
    }
}

impl<K: PartialEq + Send, V: Send> Drop for ExpectedValue<K, V> {
    fn drop(&mut self) {
        fork::with_lock(&self.store.state, |state| {
            self.place_in(state).map(|place| state.expected.swap_remove(place))
        });
    }
}

impl<K, V> IdleState<K, V> {
    /// Lets those rest whose time has come. Under the lock: one that is taken must not.
    fn rest(&mut self, now: Instant)
    where
        V: Rest,
    {
        for IdleValue { value, until, .. } in &mut self.values {
            match until {
                Until::Held(is_likely) if !is_likely.load(Ordering::Relaxed) => {
                    *until = Until::Kept(now + KEPT_FOR);
                }
                Until::Kept(end) if *end <= now => {
                    value.rest();
                    *until = Until::Resting(now + RESTS_FOR);
                }
                _ => {}
            }
        }
    }

    /// Takes out what has rested for long enough, and the oldest where too many rest.
    fn rested(&mut self, now: Instant) -> Vec<IdleValue<K, V>> {
        let is_resting = |value: &IdleValue<K, V>| matches!(value.until, Until::Resting(_));
        let mut too_many =
            self.values.iter().filter(|value| is_resting(value)).count().saturating_sub(MAX_RESTING);
        let is_over = |value: &mut IdleValue<K, V>| {
            let is_too_much = too_many > 0 && is_resting(value);
            too_many -= usize::from(is_too_much);
            is_too_much || matches!(value.until, Until::Resting(end) if end <= now)
        };
        self.values.extract_if(.., is_over).collect()
    }

    /// Adds a value. Returns the oldest one, if that has to make room.
    fn add(&mut self, value: IdleValue<K, V>) -> Option<IdleValue<K, V>> {
        let oldest = (self.values.len() >= MAX_VALUES).then(|| self.values.remove(0));
        self.values.push(value);
        oldest
    }
}

struct IdleValue<K, V> {
    key: K,
    value: V,
    until: Until,
}

enum Until {
    /// While this is true.
    Held(Arc<AtomicBool>),
    Kept(Instant),
    Resting(Instant),
}

impl<K: PartialEq + Send, V: Send + Rest> IdleStore<K, V> {
    pub const fn new() -> Self {
        Self { state: Mutex::new(IdleState { values: Vec::new(), expected: Vec::new(), dropper: None }) }
    }

    /// Keeps a value. Where no thread can be started, it is dropped at once.
    pub fn put(&'static self, key: K, value: V) {
        self.add(IdleValue { key, value, until: Until::Kept(Instant::now() + KEPT_FOR) });
    }

    fn add(&'static self, value: IdleValue<K, V>) {
        let oldest = fork::with_lock(&self.state, |state| state.add(value));
        drop(oldest);
        self.start_dropper();
    }

    /// Takes a value out. Waits for one that is on its way, but not for ever.
    pub fn take(&self, key: &K) -> Option<V> {
        let deadline = Instant::now() + PATIENCE;
        loop {
            let is_late = Instant::now() > deadline;
            let (found, is_expected) = fork::with_lock(&self.state, |state| {
                let place = state.values.iter().position(|value| value.key == *key);
                let found = place.map(|place| state.values.remove(place).value);
                let is_it = |(known, by): &(K, u64)| known == key && *by == fork::generation();
                let is_expected = state.expected.iter().any(is_it);
                if is_late && found.is_none() {
                    state.expected.retain(|expected| !is_it(expected));
                }
                (found, is_expected)
            });
            if found.is_some() || !is_expected || is_late {
                return found;
            }
            std::thread::sleep(Duration::from_millis(1));
        }
    }

    /// Tells those that will ask for a value that it is on its way.
    pub fn announce(&'static self, key: K) -> ExpectedValue<K, V>
    where
        K: Clone,
    {
        fork::with_lock(&self.state, |state| state.expected.push((key.clone(), fork::generation())));
        ExpectedValue { store: self, key }
    }

    fn start_dropper(&'static self) {
        let generation = fork::generation();
        let is_running =
            fork::with_lock(&self.state, |state| state.dropper.replace(generation) == Some(generation));
        let thread = Builder::new().name("pagestream-idle".into()).stack_size(STACK_BYTES);
        if !is_running && thread.spawn(|| self.drop_in_time()).is_err() {
            let values = fork::with_lock(&self.state, |state| {
                state.dropper = None;
                std::mem::take(&mut state.values)
            });
            drop(values);
        }
    }

    fn drop_in_time(&self) {
        loop {
            let now = Instant::now();
            let (over, next) = fork::with_lock(&self.state, |state| {
                state.rest(now);
                let over = state.rested(now);
                let look = |value: &IdleValue<K, V>| match value.until {
                    Until::Held(_) => now + LOOK_EVERY,
                    Until::Kept(end) | Until::Resting(end) => end,
                };
                let next = state.values.iter().map(look).min();
                if next.is_none() {
                    state.dropper = None;
                }
                (over, next)
            });
            drop(over);
            let Some(next) = next else { return };
            std::thread::sleep(next.saturating_duration_since(now));
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::AtomicUsize;

    use super::*;

    type Store = IdleStore<u32, Arc<()>>;

    impl Rest for Arc<()> {
        fn rest(&self) {}
    }

    /// Counts how often it was told to rest.
    impl Rest for Arc<AtomicUsize> {
        fn rest(&self) {
            self.fetch_add(1, Ordering::Relaxed);
        }
    }

    #[test]
    fn a_value_is_taken_once() {
        static STORE: Store = Store::new();
        STORE.put(1, Arc::default());
        assert!(STORE.take(&2).is_none());
        assert!(STORE.take(&1).is_some());
        assert!(STORE.take(&1).is_none());
    }

    #[test]
    fn what_nobody_takes_is_dropped_and_what_is_too_much() {
        static STORE: Store = Store::new();
        let values: Vec<_> = (0..=MAX_VALUES as u32).map(|_| Arc::new(())).collect();
        for (key, value) in values.iter().enumerate() {
            STORE.put(key as u32, value.clone());
        }
        assert_eq!(Arc::strong_count(&values[0]), 1, "the oldest makes room");
        assert_eq!(Arc::strong_count(&values[1]), 2);
        let deadline = Instant::now() + 60 * KEPT_FOR;
        while values.iter().any(|value| Arc::strong_count(value) > 1) {
            assert!(Instant::now() < deadline, "still kept");
            std::thread::sleep(Duration::from_millis(5));
        }
        // The thread has gone, or goes; another one drops what comes later.
        STORE.put(9, values[0].clone());
        while Arc::strong_count(&values[0]) > 1 {
            assert!(Instant::now() < deadline, "still kept");
            std::thread::sleep(Duration::from_millis(5));
        }
    }

    #[test]
    fn what_is_kept_rests_before_it_is_dropped_and_can_be_taken_meanwhile() {
        static STORE: IdleStore<u32, Arc<AtomicUsize>> = IdleStore::new();
        let values: Vec<_> = (0..=MAX_RESTING as u32).map(|_| Arc::new(AtomicUsize::new(0))).collect();
        for (key, value) in values.iter().enumerate() {
            STORE.put(key as u32, value.clone());
        }
        let deadline = Instant::now() + 60 * KEPT_FOR;
        while Arc::strong_count(&values[0]) > 1 {
            assert!(Instant::now() < deadline, "too many rest");
            std::thread::sleep(Duration::from_millis(5));
        }
        assert!(values.iter().all(|value| value.load(Ordering::Relaxed) == 1));
        assert!(STORE.take(&1).is_some());
        while Arc::strong_count(&values[MAX_RESTING]) > 1 {
            assert!(Instant::now() < deadline, "still resting");
            std::thread::sleep(Duration::from_millis(5));
        }
        assert_eq!(values[MAX_RESTING].load(Ordering::Relaxed), 1);
    }

    #[test]
    fn what_is_held_stays_as_long_as_it_is_likely() {
        static STORE: Store = Store::new();
        let is_likely = Arc::new(AtomicBool::new(true));
        let (held, kept) = (Arc::new(()), Arc::new(()));
        assert!(STORE.announce(1).hold(held.clone(), is_likely.clone()));
        STORE.put(2, kept.clone());
        let deadline = Instant::now() + 60 * KEPT_FOR;
        while Arc::strong_count(&kept) > 1 {
            assert!(Instant::now() < deadline, "still kept");
            std::thread::sleep(Duration::from_millis(5));
        }
        assert_eq!(Arc::strong_count(&held), 2);
        is_likely.store(false, Ordering::Relaxed);
        while Arc::strong_count(&held) > 1 {
            assert!(Instant::now() < deadline, "still held");
            std::thread::sleep(Duration::from_millis(5));
        }
    }

    #[test]
    fn a_value_that_was_waited_for_in_vain_is_not_held() {
        static STORE: Store = Store::new();
        let on_its_way = STORE.announce(1);
        assert!(STORE.take(&1).is_none());
        let (late, is_likely) = (Arc::new(()), Arc::new(AtomicBool::new(true)));
        assert!(!on_its_way.hold(late.clone(), is_likely.clone()));
        assert_eq!(Arc::strong_count(&late), 1);
        assert!(STORE.announce(1).hold(late.clone(), is_likely));
        assert!(STORE.take(&1).is_some());
    }

    #[test]
    fn a_value_on_its_way_is_waited_for() {
        static STORE: Store = Store::new();
        let on_its_way = STORE.announce(1);
        let taker = std::thread::spawn(|| STORE.take(&1).is_some());
        std::thread::sleep(Duration::from_millis(20));
        STORE.put(1, Arc::default());
        assert!(taker.join().expect("no panic"));
        drop(on_its_way);
        assert!(STORE.take(&1).is_none());
    }
}

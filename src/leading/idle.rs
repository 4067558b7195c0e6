//! [`IdleStore`]: keeps values that were released a moment ago and may be needed again.
//!
//! ```text
//!   announce ──> hold ──> held ──(no longer likely)──> kept ──(half a second)──> resting ──(two seconds)──> dropped
//!   put ───────────────────────────────────────────────┘
//! ```
//!
//! A value that is held, kept or resting can be taken. If there are too many values, the oldest is dropped. A thread
//! moves values to their next state; it runs only while there are values. If a caller waits for an announced value in
//! vain, it makes its own, and the store no longer accepts the announced value.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::thread::Builder;
use std::time::{Duration, Instant};

use crate::os::process::{fork, thread};

/// The durations of the states.
#[derive(Debug, Clone, Copy)]
pub struct IdleTimes {
    /// How long a value is kept unchanged.
    pub kept_for: Duration,
    /// How long a value rests.
    pub rests_for: Duration,
    /// How long a caller waits for an announced value.
    pub patience: Duration,
    /// Time between two checks of the held values.
    pub look_every: Duration,
}

/// These times allow for a program that computes for a while, or runs on a busy processor.
const USUAL_TIMES: IdleTimes = IdleTimes {
    kept_for: Duration::from_millis(500),
    rests_for: Duration::from_secs(2),
    patience: Duration::from_secs(1),
    look_every: Duration::from_millis(100),
};
/// Maximum number of values, and of resting values.
const MAX_VALUES: usize = 8;
const MAX_RESTING: usize = 2;
const STACK_BYTES: usize = 128 << 10;

/// A value that can pause its work.
pub trait Rest {
    /// Pauses all work until the value is used again.
    fn rest(&self);
}

/// Values by key, each kept for a moment.
pub struct IdleStore<K, V> {
    times: IdleTimes,
    state: Mutex<IdleState<K, V>>,
}

struct IdleState<K, V> {
    /// The oldest value comes first.
    values: Vec<IdleValue<K, V>>,
    /// Keys of announced values, each with the process that announced it, given as a number of forks.
    expected: Vec<(K, u64)>,
    /// The process whose thread drops values.
    dropper: Option<u64>,
}

/// An announcement of a value. It ends when this is dropped.
pub struct ExpectedValue<K: PartialEq + Send + 'static, V: Send + 'static> {
    store: &'static IdleStore<K, V>,
    key: K,
}

impl<K: PartialEq + Send + Clone, V: Send + Rest> ExpectedValue<K, V> {
    /// Holds the value while `is_likely` is true, and keeps it for a moment after that. If a caller has waited for it
    /// in vain, drops it and returns false.
    pub fn hold(&self, value: V, is_likely: Arc<AtomicBool>) -> bool {
        let value = IdleValue { key: self.key.clone(), value, until: Until::Held(is_likely) };
        // Dropped outside the lock.
        let (is_held, _dropped) = fork::with_lock(&self.store.state, |state| state.hold(value));
        if is_held {
            self.store.start_dropper();
        }
        is_held
    }
}

impl<K: PartialEq + Send, V: Send> Drop for ExpectedValue<K, V> {
    fn drop(&mut self) {
        fork::with_lock(&self.store.state, |state| {
            state.place_of_expected(&self.key).map(|place| state.expected.swap_remove(place))
        });
    }
}

/// The outcome of a request for a value.
enum TakeOutcome<V> {
    Found(V),
    /// The value is announced.
    NotYet,
    None,
}

/// The states of the values. The caller passes the time.
impl<K: PartialEq, V: Rest> IdleState<K, V> {
    const fn new() -> Self {
        Self { values: Vec::new(), expected: Vec::new(), dropper: None }
    }

    /// Moves all values to the states that are due at `now`. Returns expired values, and the time of the next step;
    /// `None` if no value is left.
    fn step(&mut self, now: Instant, times: &IdleTimes) -> (Vec<IdleValue<K, V>>, Option<Instant>) {
        self.rest(now, times);
        let over = self.rested(now);
        let look = |value: &IdleValue<K, V>| match value.until {
            Until::Held(_) => now + times.look_every,
            Until::Kept(end) | Until::Resting(end) => end,
        };
        (over, self.values.iter().map(look).min())
    }

    /// Lets values rest whose time has come. This happens under the lock, because a value that is taken must not rest.
    fn rest(&mut self, now: Instant, times: &IdleTimes) {
        for IdleValue { value, until, .. } in &mut self.values {
            match until {
                Until::Held(is_likely) if !is_likely.load(Ordering::Relaxed) => {
                    *until = Until::Kept(now + times.kept_for);
                }
                Until::Kept(end) if *end <= now => {
                    value.rest();
                    *until = Until::Resting(now + times.rests_for);
                }
                _ => {}
            }
        }
    }

    /// Removes values that have rested long enough, and the oldest ones if too many rest.
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

    /// Adds a value. Returns the oldest one if it has to make room.
    fn add(&mut self, value: IdleValue<K, V>) -> Option<IdleValue<K, V>> {
        let oldest = (self.values.len() >= MAX_VALUES).then(|| self.values.remove(0));
        self.values.push(value);
        oldest
    }

    /// Adds an announced value, unless a caller has waited for it in vain. Returns whether it was added, and the value
    /// to drop.
    fn hold(&mut self, value: IdleValue<K, V>) -> (bool, Option<IdleValue<K, V>>) {
        match self.place_of_expected(&value.key) {
            Some(_) => (true, self.add(value)),
            None => (false, Some(value)),
        }
    }

    /// Takes a value out. `is_late` says that the caller's patience is over.
    fn take(&mut self, key: &K, is_late: bool) -> TakeOutcome<V> {
        if let Some(place) = self.values.iter().position(|value| value.key == *key) {
            return TakeOutcome::Found(self.values.remove(place).value);
        }
        if self.place_of_expected(key).is_none() {
            return TakeOutcome::None;
        }
        if is_late {
            self.expected.retain(|expected| !is_expected(expected, key));
            return TakeOutcome::None;
        }
        TakeOutcome::NotYet
    }
}

impl<K: PartialEq, V> IdleState<K, V> {
    fn place_of_expected(&self, key: &K) -> Option<usize> {
        self.expected.iter().position(|expected| is_expected(expected, key))
    }
}

/// Returns whether this process has announced a value for the key.
fn is_expected<K: PartialEq>((known, by): &(K, u64), key: &K) -> bool {
    known == key && *by == fork::generation()
}

struct IdleValue<K, V> {
    key: K,
    value: V,
    until: Until,
}

enum Until {
    /// As long as this is true.
    Held(Arc<AtomicBool>),
    Kept(Instant),
    Resting(Instant),
}

impl<K: PartialEq + Send, V: Send + Rest> IdleStore<K, V> {
    pub const fn new() -> Self {
        Self::with_times(USUAL_TIMES)
    }

    const fn with_times(times: IdleTimes) -> Self {
        Self { times, state: Mutex::new(IdleState::new()) }
    }

    /// Keeps a value. If no thread can be started, drops it at once.
    pub fn put(&'static self, key: K, value: V) {
        let value = IdleValue { key, value, until: Until::Kept(Instant::now() + self.times.kept_for) };
        let oldest = fork::with_lock(&self.state, |state| state.add(value));
        drop(oldest);
        self.start_dropper();
    }

    /// Takes a value out. Waits for an announced value for a limited time.
    pub fn take(&self, key: &K) -> Option<V> {
        let deadline = Instant::now() + self.times.patience;
        loop {
            let is_late = Instant::now() > deadline;
            match fork::with_lock(&self.state, |state| state.take(key, is_late)) {
                TakeOutcome::Found(value) => return Some(value),
                TakeOutcome::None => return None,
                TakeOutcome::NotYet => std::thread::sleep(Duration::from_millis(1)),
            }
        }
    }

    /// Announces a value to callers of [`Self::take`].
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
        let builder = Builder::new().name("pagestream-idle".into()).stack_size(STACK_BYTES);
        if !is_running && thread::start(builder, || self.drop_in_time()).is_err() {
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
                let (over, next) = state.step(now, &self.times);
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
    use std::cell::Cell;
    use std::sync::mpsc;

    use super::*;

    const TIMES: IdleTimes = USUAL_TIMES;

    /// Counts the calls of `rest`.
    #[derive(Debug, Default)]
    struct Value(Cell<u32>);

    impl Rest for Value {
        fn rest(&self) {
            self.0.set(self.0.get() + 1);
        }
    }

    type States = IdleState<u32, Value>;

    fn kept(key: u32, until: Instant) -> IdleValue<u32, Value> {
        IdleValue { key, value: Value::default(), until: Until::Kept(until) }
    }

    /// Makes a store with `count` values that are kept until `until`.
    fn all_kept(count: u32, until: Instant) -> States {
        let mut state = States::new();
        for key in 0..count {
            assert!(state.add(kept(key, until)).is_none());
        }
        state
    }

    /// Returns the keys of the expired values, and the time of the next step.
    fn keys_over(state: &mut States, now: Instant) -> (Vec<u32>, Option<Instant>) {
        let (over, next) = state.step(now, &TIMES);
        (over.into_iter().map(|value| value.key).collect(), next)
    }

    fn rests(state: &States) -> Vec<u32> {
        state.values.iter().map(|value| value.value.0.get()).collect()
    }

    fn found(state: &mut States, key: u32) -> bool {
        matches!(state.take(&key, false), TakeOutcome::Found(_))
    }

    #[test]
    fn a_value_is_taken_once() {
        let mut state = all_kept(2, Instant::now());
        assert!(matches!(state.take(&2, false), TakeOutcome::None));
        assert!(found(&mut state, 1));
        assert!(matches!(state.take(&1, false), TakeOutcome::None));
        assert!(found(&mut state, 0));
    }

    #[test]
    fn the_oldest_makes_room() {
        let mut state = all_kept(MAX_VALUES as u32, Instant::now());
        let oldest = state.add(kept(100, Instant::now()));
        assert_eq!(oldest.map(|value| value.key), Some(0));
        assert_eq!(state.values.len(), MAX_VALUES);
    }

    #[test]
    fn a_kept_value_rests_before_it_is_dropped_and_can_be_taken_meanwhile() {
        let now = Instant::now();
        let (end, moment) = (now + TIMES.kept_for, Duration::from_nanos(1));
        let mut state = all_kept(2, end);
        assert_eq!(keys_over(&mut state, end.checked_sub(moment).expect("later")), (vec![], Some(end)));
        assert_eq!(rests(&state), [0, 0]);
        let late = end + Duration::from_secs(1); // a thread may wake late
        let over = late + TIMES.rests_for;
        assert_eq!(keys_over(&mut state, late), (vec![], Some(over)));
        assert_eq!(rests(&state), [1, 1]);
        assert!(found(&mut state, 0));
        assert_eq!(keys_over(&mut state, over.checked_sub(moment).expect("later")), (vec![], Some(over)));
        assert_eq!(rests(&state), [1]);
        assert_eq!(keys_over(&mut state, over), (vec![1], None));
    }

    #[test]
    fn if_too_many_values_rest_the_oldest_are_dropped() {
        let now = Instant::now();
        let mut state = all_kept(MAX_RESTING as u32 + 2, now);
        assert_eq!(keys_over(&mut state, now), (vec![0, 1], Some(now + TIMES.rests_for)));
        state.add(kept(100, now));
        assert_eq!(keys_over(&mut state, now).0, [2]);
    }

    #[test]
    fn a_held_value_stays_as_long_as_it_is_likely() {
        let (mut state, now) = (States::new(), Instant::now());
        let is_likely = Arc::new(AtomicBool::new(true));
        let held = |is_likely: &Arc<AtomicBool>| IdleValue {
            key: 1,
            value: Value::default(),
            until: Until::Held(is_likely.clone()),
        };
        assert!(!state.hold(held(&is_likely)).0, "it was not announced");
        state.expected.push((1, fork::generation()));
        assert!(state.hold(held(&is_likely)).0);
        let later = now + Duration::from_secs(3600);
        assert_eq!(keys_over(&mut state, later), (vec![], Some(later + TIMES.look_every)));
        is_likely.store(false, Ordering::Relaxed);
        let end = later + TIMES.kept_for;
        assert_eq!(keys_over(&mut state, later), (vec![], Some(end)));
        assert_eq!(rests(&state), [0]);
        let over = end + TIMES.rests_for;
        assert_eq!(keys_over(&mut state, end), (vec![], Some(over)));
        assert_eq!(keys_over(&mut state, over), (vec![1], None));
    }

    #[test]
    fn after_a_vain_wait_a_value_is_no_longer_expected() {
        let mut state = States::new();
        assert!(matches!(state.take(&1, false), TakeOutcome::None), "nobody brings it");
        state.expected.push((1, fork::generation()));
        assert!(matches!(state.take(&1, false), TakeOutcome::NotYet));
        assert!(matches!(state.take(&1, true), TakeOutcome::None));
        assert!(matches!(state.take(&1, false), TakeOutcome::None), "it is not waited for again");
        assert!(!state.hold(kept(1, Instant::now())).0);
        state.expected.push((1, fork::generation() + 1));
        assert!(matches!(state.take(&1, false), TakeOutcome::None), "another process brings that");
    }

    /// A store whose values expire quickly and whose callers have patience.
    const fn quick() -> IdleStore<u32, Told> {
        let moment = Duration::from_millis(1);
        IdleStore::with_times(IdleTimes {
            kept_for: moment,
            rests_for: moment,
            patience: Duration::from_secs(600),
            look_every: moment,
        })
    }

    /// Reports when it is dropped.
    #[derive(Debug)]
    struct Told(#[expect(dead_code, reason = "its end is what counts")] mpsc::Sender<()>);

    impl Rest for Told {
        fn rest(&self) {}
    }

    fn is_dropped(told: &mpsc::Receiver<()>) -> bool {
        told.recv_timeout(Duration::from_secs(600)) == Err(mpsc::RecvTimeoutError::Disconnected)
    }

    #[test]
    fn a_thread_drops_unclaimed_values_and_another_thread_later_ones() {
        static STORE: IdleStore<u32, Told> = quick();
        for key in 0..3 {
            let (told, dropped) = mpsc::channel();
            STORE.put(key, Told(told));
            assert!(is_dropped(&dropped));
        }
        let (told, dropped) = mpsc::channel();
        let is_likely = Arc::new(AtomicBool::new(true));
        assert!(STORE.announce(9).hold(Told(told), is_likely.clone()));
        is_likely.store(false, Ordering::Relaxed);
        assert!(is_dropped(&dropped));
    }

    #[test]
    fn take_waits_for_an_announced_value() {
        static STORE: IdleStore<u32, Told> = quick();
        let on_its_way = STORE.announce(1);
        let taker = std::thread::spawn(|| STORE.take(&1).is_some());
        let is_likely = Arc::new(AtomicBool::new(true));
        assert!(on_its_way.hold(Told(mpsc::channel().0), is_likely));
        assert!(taker.join().expect("no panic"));
        drop(on_its_way);
        assert!(STORE.take(&1).is_none());
    }

    #[test]
    fn a_value_is_not_held_after_a_vain_wait() {
        static STORE: IdleStore<u32, Told> =
            IdleStore::with_times(IdleTimes { patience: Duration::ZERO, ..USUAL_TIMES });
        let on_its_way = STORE.announce(1);
        assert!(STORE.take(&1).is_none());
        let (told, dropped) = mpsc::channel();
        let is_likely = Arc::new(AtomicBool::new(true));
        assert!(!on_its_way.hold(Told(told), is_likely));
        assert!(is_dropped(&dropped));
    }
}

//! [`ReadGate`]: storage whose reads a test answers by hand.
//!
//! ```text
//!   a read arrives ──> held ──(release)──> it is made
//!                       └────(fail)──────> it ends with this error, and brings no byte
//!   after `open`: made at once
//! ```
//!
//! A positioned read of an [`Opened`](super::Opened) that has a gate is held before it is made, in the thread that makes it.
//! Direct reads are not. Reads are told apart by their offset. A test waits for an event and never for a time:
//! [`ReadGate::wait_for`] returns once as many reads are held as it says. A test that fails opens the gate, so that no thread
//! stays behind.

use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use crate::os::errno::Code;

/// Against a hang alone: what is waited for happens at once.
const DEADLINE: Duration = Duration::from_secs(120);

/// Where reads of a file wait.
#[derive(Debug, Default)]
pub struct ReadGate {
    state: Mutex<GateState>,
    changed: Condvar,
}

/// A read that a thread is about to make.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct HeldRead {
    pub offset: u64,
    pub len: usize,
}

#[derive(Debug, Default)]
struct GateState {
    is_open: bool,
    held: Vec<HeldRead>,
    /// Reads that may go on, and what becomes of them.
    answered: Vec<(HeldRead, Result<(), Code>)>,
    /// All reads that have come so far, in this order.
    seen: Vec<HeldRead>,
}

/// Opens a gate at the end of a test, also of one that fails.
#[derive(Debug)]
pub struct OpenAtEnd<'a>(pub &'a ReadGate);

impl Drop for OpenAtEnd<'_> {
    fn drop(&mut self) {
        self.0.open();
    }
}

impl ReadGate {
    fn lock(&self) -> MutexGuard<'_, GateState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Holds a read until it is answered. Called by the thread that makes it.
    pub(super) fn pass(&self, offset: u64, len: usize) -> Result<(), Code> {
        let read = HeldRead { offset, len };
        let mut state = self.lock();
        state.seen.push(read);
        if state.is_open {
            return Ok(());
        }
        state.held.push(read);
        self.changed.notify_all();
        loop {
            if let Some(place) = state.answered.iter().position(|(of, _)| *of == read) {
                return state.answered.swap_remove(place).1;
            }
            state = self.changed.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
    }

    /// Waits until so many reads are held. Returns them by their offset.
    pub fn wait_for(&self, count: usize) -> Vec<HeldRead> {
        let state = self.lock();
        let is_short = |state: &mut GateState| state.held.len() < count;
        let waited = self.changed.wait_timeout_while(state, DEADLINE, is_short);
        let (state, outcome) = waited.unwrap_or_else(PoisonError::into_inner);
        assert!(!outcome.timed_out(), "{count} reads are awaited, and there are {:?}", state.held);
        let mut held = state.held.clone();
        held.sort_unstable();
        held
    }

    /// Lets the read from an offset be made. It must be held.
    pub fn release(&self, offset: u64) {
        self.answer(offset, Ok(()));
    }

    /// Ends the read from an offset with an error. It must be held. After `EIO` a file is read once more.
    pub fn fail(&self, offset: u64, errno: Code) {
        self.answer(offset, Err(errno));
    }

    fn answer(&self, offset: u64, answer: Result<(), Code>) {
        let mut state = self.lock();
        let place = state.held.iter().position(|read| read.offset == offset);
        let read = state.held.remove(place.expect("a read from there is held"));
        state.answered.push((read, answer));
        self.changed.notify_all();
    }

    /// Lets all reads be made that are held, and those that come.
    pub fn open(&self) {
        let mut state = self.lock();
        state.is_open = true;
        let held = std::mem::take(&mut state.held);
        state.answered.extend(held.into_iter().map(|read| (read, Ok(()))));
        self.changed.notify_all();
    }

    /// Returns all reads that have come so far, in this order.
    pub fn seen(&self) -> Vec<HeldRead> {
        self.lock().seen.clone()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_read_goes_on_once_it_is_answered_and_not_before() {
        let gate = ReadGate::default();
        std::thread::scope(|scope| {
            let _open = OpenAtEnd(&gate);
            let reads = [0, 10, 20].map(|offset| {
                scope.spawn({
                    let gate = &gate;
                    move || gate.pass(offset, 5)
                })
            });
            assert_eq!(gate.wait_for(3).iter().map(|read| read.offset).collect::<Vec<_>>(), [0, 10, 20]);
            gate.fail(10, Code::STALE);
            assert_eq!(gate.wait_for(2).len(), 2);
            gate.release(20);
            assert_eq!(gate.wait_for(1), [HeldRead { offset: 0, len: 5 }]);
            gate.open();
            let answers = reads.map(|read| read.join().expect("no panic"));
            assert_eq!(answers, [Ok(()), Err(Code::STALE), Ok(())]);
            assert_eq!((gate.pass(30, 1), gate.seen().len()), (Ok(()), 4));
        });
    }
}

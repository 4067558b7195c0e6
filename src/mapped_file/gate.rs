//! [`ReadGate`]: lets a test answer reads of storage by hand.
//!
//! ```text
//!   a read arrives ──> held ──(release)──> the read proceeds
//!                       └────(fail)──────> the read ends with this error, and returns no byte
//!   after `open`: the read proceeds at once
//! ```
//!
//! If an [`Opened`](super::Opened) has a gate, each positioned read waits there, in its own thread. Direct reads pass.
//! The offset identifies a read. Tests wait for events, never for a fixed time: for example, `wait_for(3)` returns when
//! three reads are held. [`OpenAtEnd`] opens the gate also after a failed assertion, so that no thread stays behind.

use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use crate::os::errno::Code;

/// Protects only against a hang.
const DEADLINE: Duration = Duration::from_secs(120);

/// A gate that holds the reads of a file.
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
    /// Reads that may proceed, with their outcome.
    answered: Vec<(HeldRead, Result<(), Code>)>,
    /// All reads so far, in order of arrival.
    seen: Vec<HeldRead>,
}

/// Opens a gate at the end of a test, even if the test fails.
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

    /// Holds a read until the test answers it. The reading thread calls this.
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

    /// Waits until at least `count` reads are held. Returns the held reads, sorted by offset.
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

    /// Lets the held read at `offset` proceed.
    pub fn release(&self, offset: u64) {
        self.answer(offset, Ok(()));
    }

    /// Fails the held read at `offset` with an error. After `EIO` the reader tries once more.
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

    /// Lets all held and all future reads proceed.
    pub fn open(&self) {
        let mut state = self.lock();
        state.is_open = true;
        let held = std::mem::take(&mut state.held);
        state.answered.extend(held.into_iter().map(|read| (read, Ok(()))));
        self.changed.notify_all();
    }

    /// Returns all reads so far, in order of arrival.
    pub fn seen(&self) -> Vec<HeldRead> {
        self.lock().seen.clone()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_held_read_proceeds_only_after_its_answer() {
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

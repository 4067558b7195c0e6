//! Changes while a stream reads: which groups are reserved, come first, or have no turn, and how far ahead it reads.

use std::sync::PoisonError;
use std::time::{Duration, Instant};

use crate::error::Result;

use super::engine::{Stream, StreamWork};

impl Stream {
    /// Returns whether a tensor is there or on its way, or will be after `near` others at most. One that was taken or
    /// given up is not. A group for which the budget has room is on its way: the answer does not depend on how far the
    /// threads have come.
    pub fn has(&self, want: usize, near: usize) -> bool {
        let Some(&(group, _)) = self.work.group_of.get(want) else { return false };
        let state = self.work.lock();
        StreamWork::is_near(&state, group, self.work.reach(&state), near)
    }

    /// Keeps the tensor of a want until it is taken or [released](Self::release), if [`Self::has`] is true of it. Returns
    /// whether it is. A group that the threads would have begun by now begins at once.
    pub fn reserve(&self, want: usize, near: usize) -> bool {
        let Some(&(group, _)) = self.work.group_of.get(want) else { return false };
        let mut state = self.work.lock();
        let reach = self.work.reach(&state);
        if !StreamWork::is_near(&state, group, reach, near) {
            return false;
        }
        if group < reach && !state.has_begun(group) && self.work.begin(&mut state, group).is_err() {
            return false;
        }
        state.reserved.push(group);
        state.is_held = false;
        self.work.task_ready.notify_one();
        true
    }

    /// Ends the reservation of a want that its consumer does not wait for any longer. In a child that was forked meanwhile,
    /// for example by a signal handler, it does nothing: the lock may be one that a thread of the parent held.
    pub fn release(&self, want: usize) {
        if self.check_process().is_err() {
            return;
        }
        if let Some(&(group, _)) = self.work.group_of.get(want) {
            self.work.lock().release(group);
            self.work.group_landed.notify_all();
        }
    }

    /// Reads nothing more than what consumers wait for, until another tensor is [reserved](Self::reserve).
    pub fn hold(&self) {
        self.work.lock().is_held = true;
    }

    /// Begins to read the group of a want now, whatever the budget, unless it was begun. Returns whether the tensor is
    /// there or on its way.
    pub fn bring_forward(&self, want: usize) -> Result<bool> {
        let Some(&(group, _)) = self.work.group_of.get(want) else { return Ok(false) };
        let mut state = self.work.lock();
        if !state.is_over && !state.has_begun(group) {
            let waiting = state.tasks.len();
            self.work.begin(&mut state, group)?;
            let added = state.tasks.len() - waiting;
            state.tasks.rotate_right(added);
        }
        Ok(state.is_live(group))
    }

    /// Leaves the group of a want to others, unless it was begun. Returns whether the tensor is there or on its way.
    pub fn leave_out(&self, want: usize) -> bool {
        let Some(&(group, _)) = self.work.group_of.get(want) else { return false };
        let mut state = self.work.lock();
        if !state.has_begun(group) {
            state.leave_out(group);
            self.work.task_ready.notify_all();
            self.work.group_landed.notify_all();
        }
        state.is_live(group)
    }

    /// Reads no further than up to a want, unless what lies behind is reserved.
    pub fn end_before(&self, want: usize) {
        let end = self.work.group_of.get(want).map_or(self.work.groups.len(), |&(group, _)| group);
        let mut state = self.work.lock();
        if state.end != end {
            state.end = end;
            self.work.task_ready.notify_all();
        }
    }

    /// Doubles the bytes that are read ahead, up to `most_bytes`.
    pub fn double(&self, most_bytes: u64) {
        let mut state = self.work.lock();
        if state.memory_bytes < most_bytes {
            state.memory_bytes = state.memory_bytes.saturating_mul(2).min(most_bytes);
            self.work.task_ready.notify_all();
        }
    }

    /// Waits, at most for `patience`, until no more is read unless the consumer takes something: all was begun and is
    /// there, there is no room, or the stream is over. Returns whether this is so.
    pub fn settle(&self, patience: Duration) -> bool {
        let deadline = Instant::now() + patience;
        let mut state = self.work.lock();
        loop {
            if state.is_over || (state.reading.is_empty() && !self.work.may_begin(&state)) {
                return true;
            }
            let left = deadline.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return false;
            }
            let waited = self.work.group_landed.wait_timeout(state, left);
            state = waited.unwrap_or_else(PoisonError::into_inner).0;
        }
    }
}

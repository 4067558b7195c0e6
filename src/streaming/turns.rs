//! Changes to a running stream: which groups are reserved, come first or have no turn, and how far it reads ahead.

use std::sync::PoisonError;
use std::time::{Duration, Instant};

use crate::error::Result;

use super::engine::{Stream, StreamWork};

impl Stream {
    /// Returns whether a tensor has been read, is being read, or will be after at most `near` more groups. Returns
    /// false for a tensor that was taken or given up. A group within the budget counts as being read, so the answer
    /// does not depend on the progress of the threads.
    pub fn has(&self, want: usize, near: usize) -> bool {
        let Some(&(group, _)) = self.work.group_of.get(want) else { return false };
        let state = self.work.lock();
        StreamWork::is_near(&state, group, self.work.reach(&state), near)
    }

    /// Reserves the tensor of a want until it is taken or [released](Self::release), if [`Self::has`] is true for it.
    /// Returns whether it is reserved. If the budget has room up to its group, the group begins at once.
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

    /// Ends the reservation of a want that the caller no longer waits for. Does nothing in a child that was forked
    /// meanwhile, for example by a signal handler: a thread of the parent may have held the lock at the fork.
    pub fn release(&self, want: usize) {
        if self.check_process().is_err() {
            return;
        }
        if let Some(&(group, _)) = self.work.group_of.get(want) {
            self.work.lock().release(group);
            self.work.group_landed.notify_all();
        }
    }

    /// Reads only reserved tensors until another one is [reserved](Self::reserve).
    pub fn hold(&self) {
        self.work.lock().is_held = true;
    }

    /// Begins the group of a want now, regardless of the budget, unless it has begun. Returns whether the tensor has
    /// been read or is being read.
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

    /// Leaves the group of a want to another reader, unless it has begun. Returns whether the tensor has been read or
    /// is being read.
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

    /// Stops before a want. Reads past it only if a later group is reserved.
    pub fn end_before(&self, want: usize) {
        let end = self.work.group_of.get(want).map_or(self.work.groups.len(), |&(group, _)| group);
        let mut state = self.work.lock();
        if state.end != end {
            state.end = end;
            self.work.task_ready.notify_all();
        }
    }

    /// Doubles the budget, up to `most_bytes`.
    pub fn double(&self, most_bytes: u64) {
        let mut state = self.work.lock();
        if state.memory_bytes < most_bytes {
            state.memory_bytes = state.memory_bytes.saturating_mul(2).min(most_bytes);
            self.work.task_ready.notify_all();
        }
    }

    /// Waits at most for `patience` until nothing more is read unless the program takes a tensor: all groups have
    /// landed, the budget has no room, or the stream is over. Returns whether this is so.
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

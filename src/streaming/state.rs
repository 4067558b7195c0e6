//! The groups of a stream and their states: waiting, reading, landed or handed out.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use crate::error::Error;
use crate::mapped_file::Opened;
use crate::os::memory::parts::{Part, Whole, WritableMemory};

use super::pace::Pace;
use super::plan::TensorGroup;

/// A group that is being read.
#[derive(Debug)]
pub struct Reading {
    /// The memory. The thread that read the last piece takes it.
    pub whole: Option<Whole<Box<dyn WritableMemory>>>,
    pub pieces_left: usize,
    pub opened: Option<Arc<Opened>>,
}

/// A piece that waits for a thread.
#[derive(Debug)]
pub struct Task {
    pub group: usize,
    pub piece: usize,
    pub part: Part,
    /// Bytes to read.
    pub bytes: u64,
    /// Bytes that were being read when a thread took this task, its own included.
    pub reading_bytes: u64,
}

/// A group whose bytes have all been read.
#[derive(Debug)]
pub struct LandedGroup {
    pub memory: Arc<dyn WritableMemory>,
    pub untaken: usize,
    /// The first want whose bytes were refused.
    pub refusal: Option<(usize, Error)>,
}

#[derive(Debug, Default)]
pub struct State {
    /// The next group to begin. All groups before it have begun or are left out.
    pub begun: usize,
    /// The first group after all groups that the program has waited for.
    pub asked: usize,
    /// The first group that this stream leaves to another reader.
    pub end: usize,
    /// Groups after `begun` that have no turn: they have begun early, or another reader has them.
    pub left_out: BTreeSet<usize>,
    pub tasks: VecDeque<Task>,
    /// Bytes of the tasks that threads are reading.
    pub reading_bytes: u64,
    /// Limit on speculative bytes that are read at a time; `None` for no limit.
    pub pace: Option<Arc<Pace>>,
    pub reading: BTreeMap<usize, Reading>,
    pub landed: BTreeMap<usize, LandedGroup>,
    /// Groups that callers wait for, one entry for each tensor. They are not given up.
    pub reserved: Vec<usize>,
    /// Bytes of the groups that have begun and are not fully taken.
    pub in_flight_bytes: u64,
    /// Upper bound of `in_flight_bytes`.
    pub memory_bytes: u64,
    /// Whether the program has moved elsewhere, so that only reserved groups are read.
    pub is_held: bool,
    pub failure: Option<Error>,
    pub is_over: bool,
}

impl LandedGroup {
    pub fn new(memory: Box<dyn WritableMemory>, of: &TensorGroup, refusal: Option<(usize, Error)>) -> Self {
        Self { memory: Arc::from(memory), untaken: of.places.len(), refusal }
    }
}

impl State {
    pub fn has_begun(&self, group: usize) -> bool {
        group < self.begun || self.left_out.contains(&group)
    }

    /// Returns whether the stream is to read a group, or one after it.
    pub fn is_wanted(&self, group: usize) -> bool {
        group < self.end || self.reserved.iter().any(|&reserved| reserved >= group)
    }

    pub fn is_live(&self, group: usize) -> bool {
        self.landed.contains_key(&group) || self.reading.contains_key(&group)
    }

    /// Takes the next task. Without room for speculative reads, takes only the task of a reserved group.
    pub fn next_task(&mut self) -> Option<Task> {
        // A reserved group that has not begun may need earlier groups to be read first.
        let is_held = self.is_held && self.reserved.iter().all(|&group| self.has_begun(group));
        let has_room = !is_held && self.pace.as_ref().is_none_or(|pace| pace.has_room(self.reading_bytes));
        let may_begin = |task: &Task| has_room || self.reserved.contains(&task.group);
        let place = self.tasks.iter().position(may_begin)?;
        let mut task = self.tasks.remove(place)?;
        self.reading_bytes += task.bytes;
        task.reading_bytes = self.reading_bytes;
        Some(task)
    }

    /// Notes that a task is done, and how long storage took.
    pub fn end_task(&mut self, task: &Task, took: Option<Duration>) {
        self.reading_bytes -= task.bytes;
        if let (Some(pace), Some(took)) = (&self.pace, took) {
            pace.note(task.bytes, task.reading_bytes, took);
        }
    }

    /// Ends the reservation of one tensor of a group, if there is one.
    pub fn release(&mut self, group: usize) {
        if let Some(place) = self.reserved.iter().position(|&reserved| reserved == group) {
            self.reserved.swap_remove(place);
        }
    }

    /// Gives up the first landed group that is not reserved. Returns its number.
    pub fn give_up_first(&mut self) -> Option<usize> {
        let first = self.landed.keys().copied().find(|group| !self.reserved.contains(group))?;
        self.landed.remove(&first);
        Some(first)
    }

    /// Removes a group from the order of turns, either because it begins now or because this stream skips it.
    pub fn leave_out(&mut self, group: usize) {
        self.left_out.insert(group);
        while self.left_out.remove(&self.begun) {
            self.begun += 1;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::os::memory::anonymous::{Anonymous, HugePages};
    use crate::os::memory::parts::split;

    #[test]
    fn a_held_stream_reads_only_reserved_groups_and_the_groups_before_them() {
        let mut state = State { begun: 3, is_held: true, ..State::default() };
        for group in 0..3 {
            let memory = Anonymous::private(1, HugePages::Auto).expect("a page");
            let (_, parts) = split(memory, &[(0, 1)]).expect("valid");
            let tasks =
                parts.into_iter().map(|part| Task { group, piece: 0, part, bytes: 1, reading_bytes: 0 });
            state.tasks.extend(tasks);
        }
        assert!(state.next_task().is_none());
        state.reserved = vec![1];
        assert_eq!(state.next_task().map(|task| task.group), Some(1));
        assert!(state.next_task().is_none());
        state.reserved = vec![5];
        assert_eq!(state.next_task().map(|task| (task.group, task.reading_bytes)), Some((0, 2)));
    }

    #[test]
    fn reserved_groups_are_not_given_up() {
        let mut state = State::default();
        for group in 0..3 {
            let memory = Arc::new(Anonymous::private(1, HugePages::Auto).expect("a page"));
            state.landed.insert(group, LandedGroup { memory, untaken: 1, refusal: None });
        }
        state.reserved = vec![0, 0, 1];
        assert_eq!(state.give_up_first(), Some(2));
        assert_eq!(state.give_up_first(), None);
        state.release(0);
        assert_eq!(state.give_up_first(), None, "another tensor of it is reserved");
        state.release(0);
        assert_eq!(state.give_up_first(), Some(0));
        assert!(state.landed.contains_key(&1));
    }
}

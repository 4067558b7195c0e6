//! How far a stream has come, and how far it goes by itself: for which groups the budget has room.

use std::sync::atomic::Ordering;

use super::engine::{Stream, StreamWork};
use super::state::State;

impl Stream {
    /// Bytes that were read so far.
    pub fn read_bytes(&self) -> u64 {
        self.work.read_bytes.load(Ordering::Relaxed)
    }

    /// Bytes to read in all: those of the wants, and of small gaps between them.
    pub fn planned_bytes(&self) -> u64 {
        self.work.groups.iter().flat_map(|group| &group.pieces).map(|(_, range)| range.len() as u64).sum()
    }

    /// Returns whether all tensors are there, or on their way.
    pub fn is_all_begun(&self) -> bool {
        self.work.lock().begun == self.work.groups.len()
    }
}

/// Returns whether a group of so many bytes may begin. One always may.
fn is_room_for(bytes: u64, in_flight_bytes: u64, memory_bytes: u64) -> bool {
    in_flight_bytes == 0 || in_flight_bytes.saturating_add(bytes) <= memory_bytes
}

impl StreamWork {
    /// Returns whether the next group may begin.
    pub(super) fn may_begin(&self, state: &State) -> bool {
        state.is_wanted(state.begun) && self.has_room(state)
    }

    /// Returns whether there is room for the next group. For one there always is.
    pub(super) fn has_room(&self, state: &State) -> bool {
        let next = self.groups.get(state.begun).map_or(0, |group| group.memory_bytes as u64);
        is_room_for(next, state.in_flight_bytes, state.memory_bytes)
    }

    /// Returns the first group that does not begin before the consumer has taken something: the budget has no room for it.
    pub(super) fn reach(&self, state: &State) -> usize {
        let mut in_flight_bytes = state.in_flight_bytes;
        let mut group = state.begun;
        while group < self.groups.len() && state.is_wanted(group) {
            if !state.left_out.contains(&group) {
                let bytes = self.groups[group].memory_bytes as u64;
                if !is_room_for(bytes, in_flight_bytes, state.memory_bytes) {
                    break;
                }
                in_flight_bytes += bytes;
            }
            group += 1;
        }
        group
    }

    pub(super) fn is_near(state: &State, group: usize, reach: usize, near: usize) -> bool {
        !state.is_over && (state.is_live(group) || (!state.has_begun(group) && group < reach + near))
    }
}

//! How far a stream has come, and how far it can go before the program takes a tensor.

use std::sync::atomic::Ordering;

use super::engine::{Stream, StreamWork};
use super::state::State;

impl Stream {
    /// Returns the number of bytes read so far.
    pub fn read_bytes(&self) -> u64 {
        self.work.read_bytes.load(Ordering::Relaxed)
    }

    /// Returns the number of bytes to read in total: the wants and the small gaps between them.
    pub fn planned_bytes(&self) -> u64 {
        self.work.groups.iter().flat_map(|group| &group.pieces).map(|(_, range)| range.len() as u64).sum()
    }

    /// Returns whether all tensors have been read or are being read.
    pub fn is_all_begun(&self) -> bool {
        self.work.lock().begun == self.work.groups.len()
    }
}

impl StreamWork {
    /// Returns whether the next group may begin.
    pub(super) fn may_begin(&self, state: &State) -> bool {
        state.is_wanted(state.begun) && self.has_room(state)
    }

    /// Returns whether there is room for the next group. If nothing is in flight, any group has room, but a large one
    /// only once the program waits for it.
    pub(super) fn has_room(&self, state: &State) -> bool {
        state.begun == self.groups.len() || self.has_room_for(state, state.begun, state.in_flight_bytes)
    }

    fn has_room_for(&self, state: &State, group: usize, in_flight_bytes: u64) -> bool {
        let bytes = self.groups[group].memory_bytes as u64;
        let is_in_time = bytes <= self.largest_ahead_bytes || group < state.asked;
        let is_room = in_flight_bytes == 0 || in_flight_bytes.saturating_add(bytes) <= state.memory_bytes;
        is_in_time && is_room
    }

    /// Returns the first group that cannot begin until the program has taken a tensor, because the budget has no room
    /// for it.
    pub(super) fn reach(&self, state: &State) -> usize {
        let mut in_flight_bytes = state.in_flight_bytes;
        let mut group = state.begun;
        while group < self.groups.len() && state.is_wanted(group) {
            if !state.left_out.contains(&group) {
                if !self.has_room_for(state, group, in_flight_bytes) {
                    break;
                }
                in_flight_bytes += self.groups[group].memory_bytes as u64;
            }
            group += 1;
        }
        group
    }

    pub(super) fn is_near(state: &State, group: usize, reach: usize, near: usize) -> bool {
        !state.is_over && (state.is_live(group) || (!state.has_begun(group) && group < reach + near))
    }
}

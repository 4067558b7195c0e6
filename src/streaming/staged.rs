//! Streams into memory from the caller.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use crate::error::Result;
use crate::fetch::crew::Limits;
use crate::os::memory::arena::Arena;

use super::engine::Stream;
use super::options::{CacheUse, StreamOptions};
use super::pieces::Files;
use super::plan::{Want, groups};
use super::staging::StagingPlaces;

impl Stream {
    /// Starts to read the wants into the caller's memory. The stream takes no other memory for them.
    pub fn start_in(
        arena: Arc<Arena>,
        wants: &[Want],
        files: Box<Files>,
        readers: Limits,
        cache: CacheUse,
    ) -> Result<Self> {
        let groups = groups(wants, cache.reads())?;
        let options = StreamOptions { memory_bytes: u64::MAX, readers, cache, ..StreamOptions::default() };
        let staging = StagingPlaces::new(arena, &groups)?;
        Self::begin(groups, files, None, options, Some(staging), None)
    }

    /// Returns how many wants share the group of the next tensor and have not been taken.
    pub fn untaken_beside_next(&self) -> usize {
        let next = self.work.group_of.get(self.next.load(Ordering::Relaxed));
        next.map_or(0, |&(group, number)| self.work.groups[group].places.len() - number)
    }

    /// Resumes after the caller has dropped tensors from its memory.
    pub fn wake(&self) {
        if self.work.is_here() {
            let _state = self.work.lock();
            self.work.task_ready.notify_all();
        }
    }
}

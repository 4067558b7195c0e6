//! [`Stream`]: threads that read groups ahead of a consumer.

use std::fmt;
use std::path::Path;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use crate::error::{Error, Result};
use crate::fetch::background::{Background, BackgroundWork};
use crate::fetch::crew::{Limits, Step, Wait, Work};
use crate::mapped_file::Opened;
use crate::os::errno::Code;
use crate::os::memory::anonymous::{Anonymous, HugePages};
use crate::os::memory::parts::{Part, Whole, WritableMemory, split};

use super::options::{CacheUse, StreamOptions};
use super::pace::Pace;
use super::pieces::{Files, read_piece};
use super::plan::{TensorGroup, TensorPlace, Want, groups};
use super::staging::StagingPlaces;
use super::state::{LandedGroup, Reading, State, Task};

/// Looks at the bytes of a want before they are handed out. An error takes the place of its tensor.
pub type Inspect = dyn Fn(usize, &[u8]) -> Result<()> + Send + Sync;

/// A tensor whose bytes are there. Tensors of one group share its memory.
#[derive(Debug, Clone)]
pub struct Landed {
    pub memory: Arc<dyn WritableMemory>,
    pub place: TensorPlace,
}

#[derive(Debug)]
pub enum NextTensor {
    Landed(Landed),
    End,
    /// Not within the time given.
    NotYet,
}

/// Tensors that are read ahead of the consumer, in order.
#[derive(Debug)]
pub struct Stream {
    pub(super) work: Background<StreamWork>,
    /// The want that [`Self::next`] returns.
    pub(super) next: AtomicUsize,
}

pub(super) struct StreamWork {
    pub(super) groups: Vec<TensorGroup>,
    /// The group of each want, and its number there.
    pub(super) group_of: Vec<(usize, usize)>,
    files: Box<Files>,
    cache: CacheUse,
    inspect: Option<Box<Inspect>>,
    /// Where groups have no memory of their own.
    staging: Option<StagingPlaces>,
    state: Mutex<State>,
    /// Held while a file is opened for direct reads, one at a time: on FUSE that drops its cached pages, where reads are
    /// that the file system refused to make directly.
    opening: Mutex<()>,
    read_bytes: AtomicU64,
    /// Signals tasks, or room for the next group.
    pub(super) task_ready: Condvar,
    /// Signals that a group has landed, or that none will.
    pub(super) group_landed: Condvar,
}

impl fmt::Debug for StreamWork {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.debug_struct("StreamWork").field("state", &self.state).finish_non_exhaustive()
    }
}

impl Stream {
    /// Starts to read the wanted tensors into memory of their own; at a pace, those that no consumer waits for.
    pub fn start(
        wants: &[Want],
        files: Box<Files>,
        inspect: Option<Box<Inspect>>,
        options: StreamOptions,
        pace: Option<Arc<Pace>>,
    ) -> Result<Self> {
        Self::begin(groups(wants, options.cache.reads()), files, inspect, options, None, pace)
    }

    pub(super) fn begin(
        groups: Vec<TensorGroup>,
        files: Box<Files>,
        inspect: Option<Box<Inspect>>,
        options: StreamOptions,
        staging: Option<StagingPlaces>,
        pace: Option<Arc<Pace>>,
    ) -> Result<Self> {
        let numbered = |(group, of): (usize, &TensorGroup)| {
            (0..of.places.len()).map(move |number| (group, number)).collect::<Vec<_>>()
        };
        let state = State { memory_bytes: options.memory_bytes, end: groups.len(), pace, ..State::default() };
        let work = StreamWork {
            group_of: groups.iter().enumerate().flat_map(numbered).collect(),
            groups,
            files,
            cache: options.cache,
            inspect,
            staging,
            state: Mutex::new(state),
            opening: Mutex::new(()),
            read_bytes: AtomicU64::new(0),
            task_ready: Condvar::new(),
            group_landed: Condvar::new(),
        };
        // Groups of empty tensors have no piece, and need a thread all the same.
        let pieces = work.groups.iter().map(|group| group.pieces.len()).sum::<usize>().max(1);
        let Limits { first, most } = options.readers;
        let limits = Limits { first: first.min(pieces), most: most.min(pieces) };
        let work = Background::start("pagestream-read", work, limits)?;
        Ok(Self { work, next: AtomicUsize::new(0) })
    }

    /// Refuses a child of the process whose stream it is.
    pub fn check_process(&self) -> Result<()> {
        self.work.check_process("the stream's threads")
    }

    /// Takes the next tensor, waiting for it for at most `patience`.
    pub fn next(&self, patience: Duration) -> Result<NextTensor> {
        let taken = self.take(self.next.load(Ordering::Relaxed), patience)?;
        if matches!(taken, NextTensor::Landed(_)) {
            self.next.fetch_add(1, Ordering::Relaxed);
        }
        Ok(taken)
    }

    /// Returns whether a tensor is there or on its way, or will be after `near` others at most. One that was taken or
    /// given up is not.
    pub fn has(&self, want: usize, near: usize) -> bool {
        let Some(&(group, _)) = self.work.group_of.get(want) else { return false };
        Self::is_near(&self.work.lock(), group, near)
    }

    fn is_near(state: &State, group: usize, near: usize) -> bool {
        !state.is_over && (state.is_live(group) || (!state.has_begun(group) && group < state.begun + near))
    }

    /// Keeps the tensor of a want until it is taken or [released](Self::release), if [`Self::has`] is true of it. Returns
    /// whether it is.
    pub fn reserve(&self, want: usize, near: usize) -> bool {
        let Some(&(group, _)) = self.work.group_of.get(want) else { return false };
        let mut state = self.work.lock();
        let is_near = Self::is_near(&state, group, near);
        if is_near {
            state.reserved.push(group);
            state.is_held = false;
            self.work.task_ready.notify_one();
        }
        is_near
    }

    /// Ends the reservation of a want that its consumer does not wait for any longer.
    pub fn release(&self, want: usize) {
        if let Some(&(group, _)) = self.work.group_of.get(want) {
            self.work.lock().release(group);
            self.work.group_landed.notify_all();
        }
    }

    /// Returns whether all tensors are there, or on their way.
    pub fn is_all_begun(&self) -> bool {
        self.work.lock().begun == self.work.groups.len()
    }

    /// Takes the tensor of a want, waiting for it for at most `patience`. Each is taken once. Groups that keep it
    /// from being read are given up, unless they are reserved.
    pub fn take(&self, want: usize, patience: Duration) -> Result<NextTensor> {
        self.check_process()?;
        let Some(&(group, number)) = self.work.group_of.get(want) else { return Ok(NextTensor::End) };
        let deadline = Instant::now() + patience;
        let mut state = self.work.lock();
        loop {
            if let Some(landed) = state.landed.get_mut(&group) {
                if let Some((refused, error)) = &landed.refusal
                    && *refused == want
                {
                    let error = error.clone();
                    drop(state);
                    self.work.end(None);
                    return Err(error);
                }
                let memory = landed.memory.clone();
                landed.untaken -= 1;
                let is_last = landed.untaken == 0;
                state.release(group);
                if is_last {
                    state.landed.remove(&group);
                    state.in_flight_bytes -= self.work.groups[group].memory_bytes as u64;
                    self.work.task_ready.notify_all();
                }
                let place = self.work.groups[group].places[number];
                return Ok(NextTensor::Landed(Landed { memory, place }));
            }
            // Each consumer that waits learns it.
            if let Some(error) = &state.failure {
                return Err(error.clone());
            }
            let left = deadline.saturating_duration_since(Instant::now());
            let is_given_up = state.has_begun(group) && !state.reading.contains_key(&group);
            if state.is_over || is_given_up {
                return Ok(NextTensor::End);
            }
            if !state.has_begun(group)
                && !self.work.has_room(&state)
                && let Some(before) = state.give_up_first()
            {
                state.in_flight_bytes -= self.work.groups[before].memory_bytes as u64;
                self.work.task_ready.notify_all();
                continue;
            } else if left.is_zero() {
                return Ok(NextTensor::NotYet);
            }
            let waited = self.work.group_landed.wait_timeout(state, left);
            state = waited.unwrap_or_else(PoisonError::into_inner).0;
        }
    }

    /// Returns the failure that ended the stream.
    pub fn failure(&self) -> Option<Error> {
        self.work.lock().failure.clone()
    }

    /// Bytes that were read so far.
    pub fn read_bytes(&self) -> u64 {
        self.work.read_bytes.load(Ordering::Relaxed)
    }

    /// Bytes to read in all: those of the wants, and of small gaps between them.
    pub fn planned_bytes(&self) -> u64 {
        self.work.groups.iter().flat_map(|group| &group.pieces).map(|(_, range)| range.len() as u64).sum()
    }

    /// Stops reading. Threads in the middle of a read end by themselves.
    pub fn stop(&self) {
        self.work.stop();
    }

    /// Stops the threads and waits for them, but not for ever: one may hang in a read of dead storage.
    pub fn close(&self) {
        self.work.close();
    }
}

impl StreamWork {
    pub(super) fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits for a task. Returns `None` once there will be no more.
    fn wait_for_task(&self) -> Option<Task> {
        let mut state = self.lock();
        loop {
            if state.is_over {
                return None;
            }
            if let Some(task) = state.next_task() {
                if state.pace.is_some() {
                    self.task_ready.notify_one(); // perhaps there is room for another
                }
                return Some(task);
            }
            let (next, has_task) = (state.begun, !state.tasks.is_empty());
            if next == self.groups.len() && !has_task {
                return None;
            }
            let begun =
                if !has_task && self.may_begin(&state) { self.begin(&mut state, next) } else { Ok(false) };
            match begun {
                Ok(true) => {}
                Ok(false) => state = self.task_ready.wait(state).unwrap_or_else(PoisonError::into_inner),
                Err(error) => {
                    drop(state);
                    self.end(Some(error));
                    return None;
                }
            }
        }
    }

    /// Returns whether the next group may begin.
    pub(super) fn may_begin(&self, state: &State) -> bool {
        state.is_wanted(state.begun) && self.has_room(state)
    }

    /// Returns whether there is room for the next group. For one there always is.
    fn has_room(&self, state: &State) -> bool {
        let next = self.groups.get(state.begun).map_or(0, |group| group.memory_bytes as u64);
        state.in_flight_bytes == 0 || state.in_flight_bytes.saturating_add(next) <= state.memory_bytes
    }

    /// Begins a group. Returns false if others still have its place in the caller's memory.
    pub(super) fn begin(&self, state: &mut State, number: usize) -> Result<bool> {
        let group = &self.groups[number];
        let no_memory = |errno: Code| {
            let advice = format!("{} bytes were asked for; give a lower memory_bytes", group.memory_bytes);
            Error::system("cannot allocate a tensor", Path::new(""), errno.raw_os_error(), advice)
        };
        let block: Box<dyn WritableMemory> = match &self.staging {
            None => Box::new(Anonymous::private(group.memory_bytes, HugePages::Auto).map_err(no_memory)?),
            Some(staging) => match staging.lend(number) {
                Some(loan) => Box::new(loan),
                None => return Ok(false),
            },
        };
        let ranges: Vec<_> = group.pieces.iter().map(|(_, range)| (range.start, range.len())).collect();
        let (mut whole, parts) = split(block, &ranges).map_err(no_memory)?;
        state.leave_out(number);
        state.in_flight_bytes += group.memory_bytes as u64;
        if parts.is_empty() {
            let refusal = self.refusal(group, &mut whole);
            if let Ok(block) = whole.join() {
                state.landed.insert(number, LandedGroup::new(block, group, refusal));
            }
            self.group_landed.notify_all();
            return Ok(true);
        }
        state.reading.insert(number, Reading { whole: Some(whole), pieces_left: parts.len(), opened: None });
        let task = |(piece, part): (usize, Part)| {
            let bytes = group.pieces[piece].1.len() as u64;
            Task { group: number, piece, part, bytes, reading_bytes: 0 }
        };
        state.tasks.extend(parts.into_iter().enumerate().map(task));
        self.task_ready.notify_all();
        Ok(true)
    }

    /// Returns the file of a group, which is opened by the first piece.
    fn opened(&self, group: usize) -> Result<Arc<Opened>> {
        let known = self.lock().reading.get(&group).and_then(|reading| reading.opened.clone());
        if let Some(opened) = known {
            return Ok(opened);
        }
        let opened = (self.files)(self.groups[group].file)?;
        if self.cache == CacheUse::Bypass {
            let _turn = self.opening.lock().unwrap_or_else(PoisonError::into_inner);
            opened.open_directly();
        }
        if let Some(reading) = self.lock().reading.get_mut(&group) {
            reading.opened = Some(opened.clone());
        }
        Ok(opened)
    }

    fn read(&self, task: &mut Task) -> Result<()> {
        let opened = self.opened(task.group)?;
        let piece = &self.groups[task.group].pieces[task.piece].0;
        read_piece(&opened, piece, task.part.memory(), self.cache, &mut || !self.lock().is_over)
    }

    /// Returns the first want of a group whose bytes are refused.
    fn refusal(
        &self,
        group: &TensorGroup,
        whole: &mut Whole<Box<dyn WritableMemory>>,
    ) -> Option<(usize, Error)> {
        let inspect = self.inspect.as_ref()?;
        let bytes = whole.bytes();
        group.places.iter().find_map(|place| {
            let tensor = match bytes {
                // Empty tensors may lie behind the end.
                _ if place.len == 0 => Some(&[][..]),
                Some(bytes) => bytes.get(place.offset..place.offset + place.len),
                None => None,
            };
            let cannot = || Error::argument("memory that others can write cannot be inspected");
            let refused = tensor.ok_or_else(cannot).and_then(|tensor| inspect(place.want, tensor)).err()?;
            Some((place.want, refused))
        })
    }

    /// Notes that a piece was read, and how long storage took. After the last one of a group its file is checked, and its
    /// bytes are inspected.
    fn finish(&self, task: Task, took: Option<Duration>) -> Result<()> {
        let group = task.group;
        let (mut whole, opened) = {
            let mut state = self.lock();
            state.end_task(&task, took);
            drop(task);
            let Some(reading) = state.reading.get_mut(&group) else { return Ok(()) };
            reading.pieces_left -= 1;
            if reading.pieces_left > 0 {
                return Ok(());
            }
            (reading.whole.take(), reading.opened.take())
        };
        if let Some(opened) = opened {
            opened.verify_with_server()?;
        }
        let of = &self.groups[group];
        let refusal = whole.as_mut().and_then(|whole| self.refusal(of, whole));
        // No part is left, so the block comes back.
        if let Some(Ok(block)) = whole.map(Whole::join) {
            let mut state = self.lock();
            state.reading.remove(&group);
            state.landed.insert(group, LandedGroup::new(block, of, refusal));
            self.group_landed.notify_all();
        }
        Ok(())
    }
}

impl BackgroundWork for StreamWork {
    fn end(&self, error: Option<Error>) {
        let mut state = self.lock();
        if !state.is_over {
            state.failure = error;
        }
        state.is_over = true;
        state.tasks.clear();
        let unfinished = std::mem::take(&mut state.reading);
        self.task_ready.notify_all();
        self.group_landed.notify_all();
        drop(state);
        drop(unfinished);
    }

    fn forget(&self) {
        self.lock().landed.clear();
    }
}

impl Work for StreamWork {
    type Tools = ();

    fn step(&self, (): &mut ()) -> Option<Step> {
        let mut task = self.wait_for_task()?;
        let (begun, wait) = (Instant::now(), Wait::begin());
        let read = self.read(&mut task);
        let waited = wait.end(task.bytes).0;
        let took = waited.then(|| begun.elapsed());
        if read.is_ok() {
            self.read_bytes.fetch_add(task.bytes, Ordering::Relaxed);
        }
        if let Err(error) = read.and_then(|()| self.finish(task, took)) {
            self.end(Some(error));
            return None;
        }
        Some(Step { items: 1, waited })
    }

    fn leave(&self) {
        self.task_ready.notify_one();
    }

    fn panicked(&self) {
        self.end(Some(Error::argument("a thread of the stream panicked; please report it")));
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc;

    use super::*;
    use crate::mapped_file::RequestedMode;
    use crate::streaming::test_file;

    #[test]
    fn a_stream_that_is_dropped_keeps_no_tensor_while_a_thread_is_in_a_read() {
        let opened = test_file::opened(&[1; 8192], RequestedMode::Auto);
        let (go_on, gate) = mpsc::channel::<()>();
        let gate = Mutex::new(gate);
        let files = move |number| {
            if number == 1 {
                let _ = gate.lock().expect("no panic").recv();
            }
            Ok(opened.clone())
        };
        let want = |file, offset| Want { file, offset, len: 4096, selection: None };
        let wants = [want(0, 0), want(0, 4096), want(1, 0)];
        let stream =
            Stream::start(&wants, Box::new(files), None, StreamOptions::default(), None).expect("threads");
        let taken = stream.take(0, Duration::from_secs(60)).expect("read");
        let NextTensor::Landed(Landed { memory, .. }) = taken else { panic!("it does not come") };
        assert_eq!(Arc::strong_count(&memory), 2, "its neighbour was not taken");
        drop(stream);
        assert_eq!(Arc::strong_count(&memory), 1);
        drop(go_on);
    }
}

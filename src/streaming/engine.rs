//! [`Stream`]: threads that read groups before the program asks for them.

use std::fmt;
use std::path::Path;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use crate::allocate;
use crate::error::{Error, Result};
use crate::fetch::background::{Background, BackgroundWork};
use crate::fetch::crew::{Limits, Step, Wait, Work};
use crate::fetch::next::Next;
use crate::mapped_file::Opened;
use crate::os::errno::Code;
use crate::os::memory::anonymous::{Anonymous, HugePages};
use crate::os::memory::parts::{Part, Whole, WritableMemory, split};

use super::options::{CacheUse, StreamOptions};
use super::pace::Pace;
use super::pieces::{Files, read_piece};
use super::plan::{PLAN, TensorGroup, TensorPlace, Want, groups};
use super::staging::StagingPlaces;
use super::state::{LandedGroup, Reading, State, Task};

/// Inspects the bytes of a want before the program gets them. An error replaces the tensor.
pub type Inspect = dyn Fn(usize, &[u8]) -> Result<()> + Send + Sync;

/// A tensor whose bytes have been read. Tensors of one group share its memory.
#[derive(Debug, Clone)]
pub struct Landed {
    pub memory: Arc<dyn WritableMemory>,
    pub place: TensorPlace,
}

/// Reads tensors before the program asks for them, in the order of the plan.
#[derive(Debug)]
pub struct Stream {
    pub(super) work: Background<StreamWork>,
    /// The want that [`Self::next`] returns next.
    pub(super) next: AtomicUsize,
}

pub(super) struct StreamWork {
    pub(super) groups: Vec<TensorGroup>,
    /// For each want: the number of its group, and its position in the group.
    pub(super) group_of: Vec<(usize, usize)>,
    files: Box<Files>,
    cache: CacheUse,
    pub(super) largest_ahead_bytes: u64,
    inspect: Option<Box<Inspect>>,
    /// The caller's memory; `None` if each group has its own.
    staging: Option<StagingPlaces>,
    state: Mutex<State>,
    /// Held by a thread that opens a file for direct reads. On FUSE, an `open` drops the file's cached pages, and other
    /// threads may be reading through them if the file system has refused direct reads.
    opening: Mutex<()>,
    pub(super) read_bytes: AtomicU64,
    /// Signals new tasks, or room for the next group.
    pub(super) task_ready: Condvar,
    /// Signals that a group has landed, or that no more will.
    pub(super) group_landed: Condvar,
}

impl fmt::Debug for StreamWork {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.debug_struct("StreamWork").field("state", &self.state).finish_non_exhaustive()
    }
}

impl Stream {
    /// Starts to read the wants into owned memory. The `pace` limits speculative reads.
    pub fn start(
        wants: &[Want],
        files: Box<Files>,
        inspect: Option<Box<Inspect>>,
        options: StreamOptions,
        pace: Option<Arc<Pace>>,
    ) -> Result<Self> {
        Self::begin(groups(wants, options.cache.reads())?, files, inspect, options, None, pace)
    }

    pub(super) fn begin(
        groups: Vec<TensorGroup>,
        files: Box<Files>,
        inspect: Option<Box<Inspect>>,
        options: StreamOptions,
        staging: Option<StagingPlaces>,
        pace: Option<Arc<Pace>>,
    ) -> Result<Self> {
        let numbered =
            |(group, of): (usize, &TensorGroup)| (0..of.places.len()).map(move |number| (group, number));
        let group_of = allocate::collected(groups.iter().enumerate().flat_map(numbered), PLAN)?;
        let state = State { memory_bytes: options.memory_bytes, end: groups.len(), pace, ..State::default() };
        let work = StreamWork {
            group_of,
            groups,
            files,
            cache: options.cache,
            largest_ahead_bytes: options.largest_ahead_bytes,
            inspect,
            staging,
            state: Mutex::new(state),
            opening: Mutex::new(()),
            read_bytes: AtomicU64::new(0),
            task_ready: Condvar::new(),
            group_landed: Condvar::new(),
        };
        // A group of empty tensors has no pieces, but a thread must still process it.
        let pieces = work.groups.iter().map(|group| group.pieces.len()).sum::<usize>().max(1);
        let Limits { first, most } = options.readers;
        let limits = Limits { first: first.min(pieces), most: most.min(pieces) };
        let work = Background::start("pagestream-read", work, limits)?;
        Ok(Self { work, next: AtomicUsize::new(0) })
    }

    /// Returns an error in a forked child, because the stream's threads stay in the parent.
    pub fn check_process(&self) -> Result<()> {
        self.work.check_process("the stream's threads")
    }

    /// Takes the next tensor. Waits for it at most for `patience`.
    pub fn next(&self, patience: Duration) -> Result<Next<Landed>> {
        let taken = self.take(self.next.load(Ordering::Relaxed), patience)?;
        if matches!(taken, Next::Ready(_)) {
            self.next.fetch_add(1, Ordering::Relaxed);
        }
        Ok(taken)
    }

    /// Takes the tensor of a want. Waits for it at most for `patience`. A want can be taken once. If the budget has no
    /// room for its group, the stream gives up landed groups that are not reserved.
    pub fn take(&self, want: usize, patience: Duration) -> Result<Next<Landed>> {
        self.check_process()?;
        let Some(&(group, number)) = self.work.group_of.get(want) else { return Ok(Next::End) };
        let deadline = Instant::now() + patience;
        let mut state = self.work.lock();
        if state.asked <= group {
            state.asked = group + 1;
            if !state.has_begun(group) {
                self.work.task_ready.notify_all();
            }
        }
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
                return Ok(Next::Ready(Landed { memory, place }));
            }
            // Every waiting caller gets the error.
            if let Some(error) = &state.failure {
                return Err(error.clone());
            }
            let left = deadline.saturating_duration_since(Instant::now());
            let is_given_up = state.has_begun(group) && !state.reading.contains_key(&group);
            if state.is_over || is_given_up {
                return Ok(Next::End);
            }
            if !state.has_begun(group)
                && !self.work.has_room(&state)
                && let Some(before) = state.give_up_first()
            {
                state.in_flight_bytes -= self.work.groups[before].memory_bytes as u64;
                self.work.task_ready.notify_all();
                continue;
            } else if left.is_zero() {
                return Ok(Next::NotYet);
            }
            let waited = self.work.group_landed.wait_timeout(state, left);
            state = waited.unwrap_or_else(PoisonError::into_inner).0;
        }
    }

    /// Returns the error that ended the stream.
    pub fn failure(&self) -> Option<Error> {
        self.work.lock().failure.clone()
    }

    /// Stops reading. A thread that is in a read finishes it and then ends.
    pub fn stop(&self) {
        self.work.stop();
    }

    /// Stops the threads and waits for them for a limited time, because a read from dead storage may never return.
    pub fn close(&self) {
        self.work.close();
    }
}

/// The next action of a thread.
#[derive(Debug)]
enum ThreadTurn {
    Read(Task),
    /// Wait until the program has taken a tensor, or another thread has finished a read.
    Wait,
    End,
}

impl StreamWork {
    pub(super) fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits for a task. Returns `None` if there will be no more.
    fn wait_for_task(&self) -> Option<Task> {
        let mut state = self.lock();
        loop {
            match self.turn(&mut state) {
                Ok(ThreadTurn::Read(task)) => return Some(task),
                Ok(ThreadTurn::Wait) => {
                    state = self.task_ready.wait(state).unwrap_or_else(PoisonError::into_inner);
                }
                Ok(ThreadTurn::End) => return None,
                Err(error) => {
                    drop(state);
                    self.end(Some(error));
                    return None;
                }
            }
        }
    }

    /// Decides the next action of a thread. Begins groups until there is a task.
    fn turn(&self, state: &mut State) -> Result<ThreadTurn> {
        while !state.is_over {
            if let Some(task) = state.next_task() {
                if state.pace.is_some() {
                    self.task_ready.notify_one(); // the pace may have room for another task
                }
                return Ok(ThreadTurn::Read(task));
            }
            let (next, has_task) = (state.begun, !state.tasks.is_empty());
            if next == self.groups.len() && !has_task {
                break;
            }
            if has_task || !self.may_begin(state) || !self.begin(state, next)? {
                return Ok(ThreadTurn::Wait);
            }
        }
        Ok(ThreadTurn::End)
    }

    /// Reads the piece of a task. After the last piece of a group, hands the group over. Returns whether the thread
    /// waited for storage; `None` after a failure.
    fn read_task(&self, mut task: Task) -> Option<bool> {
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
        Some(waited)
    }

    /// Begins a group. Returns false if its place in the caller's memory is still in use.
    pub(super) fn begin(&self, state: &mut State, number: usize) -> Result<bool> {
        let group = &self.groups[number];
        let no_memory = |errno: Code| {
            let advice = format!(
                "{} bytes were asked for; lower memory_bytes or PAGESTREAM_MEMORY_BYTES",
                group.memory_bytes
            );
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

    /// Returns the file of a group. The first piece opens it.
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

    /// Returns the first want in a group whose bytes the inspection refuses.
    fn refusal(
        &self,
        group: &TensorGroup,
        whole: &mut Whole<Box<dyn WritableMemory>>,
    ) -> Option<(usize, Error)> {
        let inspect = self.inspect.as_ref()?;
        let bytes = whole.bytes();
        group.places.iter().find_map(|place| {
            let tensor = match bytes {
                // Empty tensors may lie past the end of the group.
                _ if place.len == 0 => Some(&[][..]),
                Some(bytes) => bytes.get(place.offset..place.offset + place.len),
                None => None,
            };
            let cannot = || Error::argument("memory that others can write cannot be inspected");
            let refused = tensor.ok_or_else(cannot).and_then(|tensor| inspect(place.want, tensor)).err()?;
            Some((place.want, refused))
        })
    }

    /// Notes that a piece was read, and how long storage took. After the last piece of a group, checks the file and
    /// inspects the bytes.
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
        // All parts have been dropped, so the whole block is available again.
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
        let waited = self.read_task(self.wait_for_task()?)?;
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
    use crate::error::ReadCause;
    use crate::mapped_file::RequestedMode;
    use crate::mapped_file::gate::{OpenAtEnd, ReadGate};
    use crate::mapped_file::test_file;

    const LEN: u64 = 4096;
    /// Only guards against a hang.
    const MINUTES: Duration = Duration::from_secs(600);
    /// No threads: the tests take their turns.
    const BY_HAND: Limits = Limits { first: 0, most: 0 };
    const FOUR: Limits = Limits { first: 4, most: 4 };

    impl Stream {
        /// Takes the turn of a thread. Returns false if a thread would wait or end here.
        pub fn take_turn(&self) -> bool {
            let turn = self.work.turn(&mut self.work.lock());
            match turn {
                Ok(ThreadTurn::Read(task)) => self.work.read_task(task).is_some(),
                Ok(ThreadTurn::Wait | ThreadTurn::End) => false,
                Err(error) => {
                    self.work.end(Some(error));
                    false
                }
            }
        }
    }

    /// Returns `count` wants. Each is in its own file and so forms its own group.
    fn wants(count: u64) -> Vec<Want> {
        let want = |number| Want { file: number as usize, offset: number * LEN, len: LEN, selection: None };
        (0..count).map(want).collect()
    }

    /// Returns the bytes of `count` tensors. Every byte of a tensor is the tensor's number.
    fn content(count: u64) -> Vec<u8> {
        (0..count * LEN).map(|at| (at / LEN) as u8).collect()
    }

    /// Refuses the bytes of any other tensor.
    fn has_its_number(want: usize, bytes: &[u8]) -> Result<()> {
        let is_its = bytes.iter().all(|&byte| byte == want as u8);
        is_its.then_some(()).ok_or_else(|| Error::argument("bytes of another tensor"))
    }

    /// Makes a stream of `count` tensors whose budget has room for `room` of them.
    fn stream(opened: &Arc<Opened>, count: u64, room: u64, readers: Limits) -> Stream {
        let options = StreamOptions { memory_bytes: room * LEN, readers, ..StreamOptions::default() };
        let opened = opened.clone();
        let files = Box::new(move |_| Ok(opened.clone()));
        Stream::start(&wants(count), files, Some(Box::new(has_its_number)), options, None).expect("threads")
    }

    fn gated(count: u64) -> (Arc<Opened>, Arc<ReadGate>) {
        test_file::gated(&content(count), RequestedMode::Read)
    }

    /// Returns whether the tensor of a want arrives with the right bytes.
    fn comes(stream: &Stream, want: usize) -> bool {
        match stream.take(want, MINUTES).expect("read") {
            Next::Ready(Landed { place, .. }) => {
                assert_eq!((place.want, place.len as u64), (want, LEN));
                true
            }
            Next::End => false,
            Next::NotYet => panic!("want {want} never comes"),
        }
    }

    /// Does the same for a stream without threads: takes turns until the tensor is there.
    fn comes_by_hand(stream: &Stream, want: usize) -> bool {
        loop {
            match stream.take(want, Duration::ZERO).expect("read") {
                Next::Ready(_) => return true,
                Next::End => return false,
                Next::NotYet => assert!(stream.take_turn(), "want {want} never comes"),
            }
        }
    }

    fn is_not_yet(stream: &Stream, want: usize) -> bool {
        matches!(stream.take(want, Duration::ZERO), Ok(Next::NotYet))
    }

    #[test]
    fn whether_a_tensor_is_near_does_not_depend_on_the_progress_of_the_threads() {
        let opened = test_file::opened(&content(8), RequestedMode::Read);
        for turns in 0..=8 {
            let stream = stream(&opened, 8, 4, BY_HAND);
            let _ = (0..turns).all(|_| stream.take_turn());
            let found: Vec<_> = (0..8).map(|want| stream.has(want, 1)).collect();
            assert_eq!(found, [true, true, true, true, true, false, false, false], "after {turns} turns");
            let found: Vec<_> = (0..8).map(|want| stream.has(want, 3)).collect();
            assert_eq!(found, [true, true, true, true, true, true, true, false], "after {turns} turns");
        }
    }

    #[test]
    fn a_tensor_too_large_to_read_ahead_is_read_once_it_is_awaited() {
        let opened = test_file::opened(&content(3), RequestedMode::Read);
        let options = StreamOptions {
            memory_bytes: LEN / 2,
            largest_ahead_bytes: LEN / 2,
            readers: BY_HAND,
            ..StreamOptions::default()
        };
        let files = Box::new(move |_| Ok(opened.clone()));
        let stream = Stream::start(&wants(3), files, None, options, None).expect("threads");
        for want in 0..3 {
            assert!(!stream.take_turn(), "nobody waits for {want}");
            assert!(stream.settle(Duration::ZERO));
            assert!(!stream.has(want, 0) && stream.has(want, 1));
            assert!(is_not_yet(&stream, want));
            assert!(comes_by_hand(&stream, want));
        }
        assert!(!comes(&stream, 3));
    }

    #[test]
    fn a_reserved_tensor_within_the_budget_does_not_wait_for_earlier_tensors() {
        let opened = test_file::opened(&content(8), RequestedMode::Read);
        let stream = stream(&opened, 8, 4, BY_HAND);
        assert!(stream.reserve(3, 1));
        assert!(stream.take_turn());
        assert!(comes(&stream, 3));
        assert_eq!(stream.read_bytes(), LEN, "nothing else");
        // The reservation has not changed the budget.
        while stream.take_turn() {}
        assert_eq!(stream.work.lock().landed.keys().copied().collect::<Vec<_>>(), [0, 1, 2, 4]);
    }

    #[test]
    fn a_tensor_brought_forward_is_read_first_whatever_the_budget() {
        let opened = test_file::opened(&content(8), RequestedMode::Read);
        let stream = stream(&opened, 8, 4, BY_HAND);
        assert!(stream.reserve(1, 1) && stream.reserve(2, 1));
        assert!(stream.bring_forward(7).expect("begun"));
        assert!(stream.take_turn());
        assert_eq!(stream.work.lock().landed.keys().copied().collect::<Vec<_>>(), [7]);
        assert!(comes(&stream, 7));
        assert!(!stream.bring_forward(7).expect("nothing to begin"), "it was taken");
    }

    #[test]
    fn the_first_tensor_beyond_a_full_budget_is_reserved_and_waits_for_its_turn() {
        let opened = test_file::opened(&content(8), RequestedMode::Read);
        for turns in 0..=4 {
            let stream = stream(&opened, 8, 4, BY_HAND);
            let _ = (0..turns).all(|_| stream.take_turn());
            assert!(stream.reserve(4, 1) && !stream.reserve(5, 1), "after {turns} turns");
            assert!(comes_by_hand(&stream, 4), "after {turns} turns");
            assert!(!comes_by_hand(&stream, 0), "the first one was given up for it");
            assert!(comes_by_hand(&stream, 1), "after {turns} turns");
        }
    }

    #[test]
    fn groups_that_land_out_of_order_are_handed_out_in_order() {
        let (opened, gate) = gated(3);
        let stream = stream(&opened, 3, 3, FOUR);
        let _open = OpenAtEnd(&gate);
        assert_eq!(gate.wait_for(3).iter().map(|read| read.offset).collect::<Vec<_>>(), [0, LEN, 2 * LEN]);
        gate.release(2 * LEN);
        assert!(comes(&stream, 2));
        assert!(matches!(stream.next(Duration::ZERO), Ok(Next::NotYet)));
        gate.release(LEN);
        gate.release(0);
        for want in 0..2 {
            let next = stream.next(MINUTES).expect("read");
            assert!(matches!(next, Next::Ready(Landed { place, .. }) if place.want == want));
        }
    }

    #[test]
    fn waiting_for_a_tensor_without_room_gives_up_the_others() {
        let (opened, gate) = gated(3);
        let stream = stream(&opened, 3, 1, FOUR);
        std::thread::scope(|scope| {
            let _open = OpenAtEnd(&gate);
            gate.wait_for(1);
            // The request may come before or after the first tensor lands.
            let taker = scope.spawn(|| comes(&stream, 2));
            for offset in [0, LEN, 2 * LEN] {
                assert_eq!(gate.wait_for(1)[0].offset, offset);
                gate.release(offset);
            }
            assert!(taker.join().expect("no panic"));
            assert!(!comes(&stream, 0) && !comes(&stream, 1), "both were given up");
        });
    }

    #[test]
    fn a_reserved_tensor_is_not_given_up_until_it_is_released() {
        let opened = test_file::opened(&content(2), RequestedMode::Read);
        let stream = stream(&opened, 2, 1, BY_HAND);
        assert!(stream.reserve(0, 1));
        while stream.take_turn() {}
        assert!(is_not_yet(&stream, 1) && !stream.take_turn(), "there is no room");
        stream.release(0);
        assert!(is_not_yet(&stream, 1) && stream.take_turn());
        assert!(comes(&stream, 1) && !comes(&stream, 0));
    }

    #[test]
    fn a_failure_ends_the_stream_for_every_waiter_while_other_reads_are_in_flight() {
        let (opened, gate) = gated(3);
        let stream = stream(&opened, 3, 3, FOUR);
        std::thread::scope(|scope| {
            let _open = OpenAtEnd(&gate);
            gate.wait_for(3);
            let takers = [0, 2].map(|want| {
                scope.spawn({
                    let stream = &stream;
                    move || stream.take(want, MINUTES)
                })
            });
            gate.fail(LEN, Code::STALE);
            for taker in takers {
                let found = taker.join().expect("no panic");
                let Err(Error::MappedRead { offset: LEN, cause: ReadCause::Io { errno, .. }, .. }) = found
                else {
                    panic!("{found:?}")
                };
                assert_eq!(errno, Code::STALE.raw_os_error());
            }
            assert_eq!(gate.wait_for(2).len(), 2);
        });
        stream.work.wait_for_threads(MINUTES);
        assert!(stream.work.lock().landed.is_empty(), "what comes later is dropped");
        assert!(stream.failure().is_some());
    }

    #[test]
    fn tensors_that_landed_before_a_failure_can_be_taken() {
        let (opened, gate) = gated(2);
        let stream = stream(&opened, 2, 2, FOUR);
        let _open = OpenAtEnd(&gate);
        gate.wait_for(2);
        gate.release(0);
        let is_missing = |state: &mut State| state.landed.is_empty();
        let waited = stream.work.group_landed.wait_timeout_while(stream.work.lock(), MINUTES, is_missing);
        assert!(waited.is_ok_and(|(_, outcome)| !outcome.timed_out()));
        gate.fail(LEN, Code::STALE);
        assert!(stream.take(1, MINUTES).is_err());
        assert!(comes(&stream, 0));
    }

    #[test]
    fn the_memory_of_a_read_outlives_a_dropped_stream() {
        struct Gone(mpsc::Sender<()>);
        impl Drop for Gone {
            fn drop(&mut self) {
                let _ = self.0.send(());
            }
        }
        let (opened, gate) = gated(2);
        let (gone, work_is_gone) = mpsc::channel();
        let gone = Gone(gone);
        let files = move |_| {
            let _of_the_work = &gone;
            Ok(opened.clone())
        };
        let options = StreamOptions { readers: FOUR, ..StreamOptions::default() };
        let stream = Stream::start(&wants(2), Box::new(files), None, options, None).expect("threads");
        gate.wait_for(2);
        drop(stream);
        assert_eq!(work_is_gone.try_recv(), Err(mpsc::TryRecvError::Empty), "threads are in reads");
        gate.open();
        work_is_gone.recv_timeout(MINUTES).expect("the last thread drops the work");
    }

    #[test]
    fn a_dropped_stream_keeps_no_tensor_while_a_thread_reads() {
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
        let taken = stream.take(0, MINUTES).expect("read");
        let Next::Ready(Landed { memory, .. }) = taken else { panic!("it does not come") };
        assert_eq!(Arc::strong_count(&memory), 2, "its neighbour was not taken");
        drop(stream);
        assert_eq!(Arc::strong_count(&memory), 1);
        drop(go_on);
    }
}

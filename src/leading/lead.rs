//! [`Lead`]: reads ahead of a program that requests the tensors of one file one by one, and never says which it will
//! request.
//!
//! ```text
//!   reads go through the page cache ──> advising ──(all was requested; pages were cached)──> off
//!                                       a thread asks the kernel for the next tensors        ▲
//!   they do not ──────────────────────> reading ──(a read failed; memory is short)───────────┘
//!                ▲                      a stream reads the next tensors into owned memory
//!                └─(the program requests a part of a tensor)── advising
//! ```
//!
//! While a thread advises, used tensors make room for tensors read ahead.
//!
//! [`super::guess`] predicts the next tensors. A lead doubles with each right prediction. Its limit is its initial
//! length plus twice the bytes used since. It ends at the place from which another thread of this process reads the
//! same file ([`super::run`]). In the next file it starts at half of its full length. A part of a tensor, for example
//! some rows, gets its own memory, so a stream reads it even if whole tensors come out of the page cache.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::Duration;

use crate::allocate::OutOfMemory;
use crate::error::Result;
use crate::fetch::ahead::Ahead;
use crate::fetch::budget::Budget;
use crate::fetch::crew::{Crew, Limits};
use crate::fetch::ranges::ByteRange;
use crate::mapped_file::Opened;
use crate::mapped_file::page_cache::{self, Prefetcher};
use crate::os::process::{fork, limits};

use crate::slicing::Selection;

use super::file_tensors::FileTensors;
use super::guess::Guess;
use super::lead_count::{Seat, usual_lead_bytes};
use super::lead_cursor::{LeadCursor, LeadStep};
use super::lead_file::LeadFile;
use super::lead_streams::{Answer, LeadStreams};
use super::run::Run;
use crate::streaming::pace::Pace;
use crate::streaming::plan::FIRST_BYTES;

/// The available memory is checked each time the program has taken this many bytes.
const LOOK_BYTES: u64 = 64 << 20;

/// The advising thread.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Adviser {
    NotStarted,
    Runs,
    Ended,
}

/// The start of the lead in the next file: the predictions so far, and the pace of the same storage.
pub type Handover = (Guess, Arc<Pace>);

/// Reads ahead of a program that uses one file.
#[derive(Debug)]
pub struct Lead {
    work: Arc<LeadWork>,
    crew: Arc<Crew>,
    process: u64,
}

#[derive(Debug)]
struct LeadWork {
    file: LeadFile,
    /// Whether the kernel is asked for whole tensors. If not, a stream reads them. A stream always reads parts of
    /// tensors.
    fills_cache: bool,
    /// Whether cached pages of the file must stay cached: on FUSE, another `open` drops them.
    keeps_cache: bool,
    is_off: AtomicBool,
    state: Mutex<Following>,
    /// Wakes the advising thread after a change of the state.
    moved: Condvar,
}

#[derive(Debug)]
struct Following {
    guess: Guess,
    cursor: LeadCursor,
    streams: LeadStreams,
    /// Number of tensors from streams that the program waits for.
    awaited: usize,
    /// Bytes taken since the available memory was checked.
    taken_bytes: u64,
    /// The file; `None` once the lead is off.
    opened: Option<Arc<Opened>>,
    adviser: Adviser,
    /// Whether the program has closed the file.
    is_left: bool,
    is_closed: bool,
}

/// Turns a lead off when its thread ends, even by a panic.
struct TurnOff<'a>(&'a LeadWork);

impl Drop for TurnOff<'_> {
    fn drop(&mut self) {
        self.0.turn_off();
    }
}

impl Lead {
    /// Makes a lead for the tensors of a file. It reads nothing before the first request. With `keeps_cache`, it does
    /// not open the file again. If the `kernel_keeps_up`, it reads only parts of tensors.
    pub fn new(
        opened: Arc<Opened>,
        tensors: FileTensors,
        limit_bytes: Option<u64>,
        keeps_cache: bool,
        kernel_keeps_up: bool,
    ) -> Result<Self, OutOfMemory> {
        let limit_bytes = limit_bytes.unwrap_or_else(usual_lead_bytes);
        let budget = Budget::new(FIRST_BYTES.min(limit_bytes), limit_bytes);
        let (guess, cursor) = (Guess::new(&tensors)?, LeadCursor::new(tensors.ranges.len(), budget)?);
        let seat = Seat::default();
        // A stream of parts takes its seat once it starts.
        if !kernel_keeps_up {
            seat.take();
        }
        let fills_cache = opened.may_read_from_cache();
        let file = LeadFile { tensors, limit_bytes, seat, run: Run::new(opened.facts.identity) };
        let state = Following {
            guess,
            cursor,
            streams: LeadStreams::default(),
            awaited: 0,
            taken_bytes: 0,
            opened: Some(opened),
            adviser: if kernel_keeps_up { Adviser::Ended } else { Adviser::NotStarted },
            is_left: false,
            is_closed: false,
        };
        let work = LeadWork {
            file,
            fills_cache,
            keeps_cache,
            is_off: AtomicBool::new(false),
            state: Mutex::new(state),
            moved: Condvar::new(),
        };
        Ok(Self {
            work: Arc::new(work),
            crew: Arc::new(Crew::new(Limits { first: 1, most: 1 })),
            process: fork::generation(),
        })
    }

    /// Starts the advising thread, once. It opens the file again, which on FUSE drops the file's cached pages. It
    /// therefore starts only once the lead is in use, because a lead that loses a race is discarded. It does not start
    /// for parts of tensors, because the opening would drop the pages read by their stream.
    fn start(&self) {
        let mut state = self.work.lock();
        if !self.work.fills_cache || state.adviser != Adviser::NotStarted || state.guess.has_parts {
            return;
        }
        let Some(opened) = state.opened.clone() else { return };
        state.adviser = Adviser::Runs;
        drop(state);
        // Open here and not in the thread, which may start late. On FUSE the opening drops cached pages, by then also
        // the pages of the program.
        let prefetcher = if self.work.keeps_cache { None } else { Prefetcher::new(&opened) };
        let work = self.work.clone();
        if self.crew.assist("pagestream-lead", move || work.advise(&opened, prefetcher)).is_err() {
            self.work.turn_off();
        }
    }

    /// Notes a request for the tensor at `offset` of the file, or for a part of it. The tensor is not empty. `opened`
    /// is the file with the program's mappings.
    pub fn ask(&self, opened: &Opened, offset: u64, selection: Option<&Selection>) -> Answer {
        let work = &self.work;
        let found = work.file.tensors.ranges.binary_search_by_key(&offset, |&(offset, _)| offset);
        let (Ok(number), false, true) = (found, self.is_off(), self.process == fork::generation()) else {
            return Answer::InFile;
        };
        // Best effort: for example, if no thread can be started, tensors are read without a lead.
        let answer = work.follow(opened, number, selection).unwrap_or_else(|_| {
            work.turn_off();
            Answer::InFile
        });
        self.start();
        answer
    }

    /// Returns the start of the lead in the next file, once the program has requested its last tensor of this file.
    pub fn at_end(&self) -> Option<Handover> {
        let state = (self.process == fork::generation()).then(|| self.work.lock())?;
        let is_at_end = state.is_at_end();
        if is_at_end {
            // Other leads may begin, even if the program has skipped tensors here.
            self.work.file.seat.give_up();
        }
        is_at_end.then(|| (state.guess.clone(), state.streams.pace.clone()))
    }

    /// Begins to read for a program that is predicted to continue here from another file.
    pub fn begin(&self, (guess, pace): &Handover) -> Result<()> {
        let work = &self.work;
        if self.process != fork::generation() {
            return Ok(());
        }
        let mut state = work.lock();
        if state.guess.uses.unused < work.file.tensors.ranges.len() || state.streams.current.is_some() {
            return Ok(()); // the program or another handover came first
        }
        (state.guess, state.streams.pace) = (guess.in_next_file(&work.file.tensors)?, pace.clone());
        // The bytes read ahead in the previous file still take memory.
        let first_bytes = work.file.stream_bytes().div_ceil(2);
        let Following { guess, cursor, streams, opened, .. } = &mut *state;
        if work.fills_cache && !guess.has_parts {
            cursor.begin(work.file.budget(first_bytes));
        } else if let Some(opened) = opened {
            streams.start(&work.file, opened, guess, (0, false), first_bytes)?;
        }
        drop(state);
        self.start();
        work.moved.notify_all();
        Ok(())
    }

    /// Returns whether the lead ignores all requests from now on.
    pub fn is_off(&self) -> bool {
        self.work.is_off.load(Ordering::Relaxed)
    }

    /// Notes that a tensor with `bytes` bytes was taken from a stream. 0 means that it does not come, or that the
    /// program no longer waits for it. Turns the lead off once all tensors were taken, or if the program keeps too many
    /// and memory is short.
    pub fn note_taken(&self, bytes: u64) {
        if self.process != fork::generation() {
            return;
        }
        let (is_time, is_last) = {
            let mut state = self.work.lock();
            state.awaited = state.awaited.saturating_sub(1);
            state.taken_bytes += bytes;
            let is_time = state.taken_bytes >= LOOK_BYTES;
            state.taken_bytes = if is_time { 0 } else { state.taken_bytes };
            (is_time, state.guess.uses.unused == 0 && state.awaited == 0)
        };
        let least_bytes = 2 * self.work.file.stream_bytes();
        if is_last || (is_time && limits::available_memory_bytes() < least_bytes) {
            self.work.turn_off();
        }
    }

    /// Waits at most for `patience` until the kernel was asked for all requested tensors that memory can hold. Returns
    /// whether it was.
    pub fn finish(&self, patience: Duration) -> bool {
        if !self.work.fills_cache || self.process != fork::generation() {
            return true;
        }
        self.work.lock().cursor.finish(|| limits::available_memory_bytes() / 2);
        self.work.moved.notify_all();
        self.crew.wait_for_end(patience);
        self.is_off() || self.crew.threads() == 0
    }

    /// Stops reading ahead until the program requests another tensor.
    pub fn rest(&self) {
        let mut state = self.work.lock();
        state.cursor.rest();
        if let Some(expected) = &state.streams.current {
            expected.stream.hold();
        }
        drop(state);
        self.work.file.seat.give_up();
    }

    /// Stops reading ahead. The thread still asks the kernel for requested tensors, as far as memory can hold them, as
    /// long as there are views of the file.
    pub fn close(&self) {
        if self.process != fork::generation() {
            return;
        }
        let mut state = self.work.lock();
        if state.adviser != Adviser::Runs || state.guess.has_parts {
            drop(state);
            self.work.turn_off();
            return;
        }
        state.cursor.finish(|| limits::available_memory_bytes() / 2);
        state.is_left = true;
        drop(state);
        self.work.moved.notify_all();
    }
}

impl Drop for Lead {
    fn drop(&mut self) {
        if self.process == fork::generation() {
            self.close();
        } else {
            // A thread of the parent may have held the lock at the fork, so touch nothing.
            std::mem::forget(self.work.clone());
        }
    }
}

impl Following {
    /// Returns whether the lead has asked for everything that the program will request in this file.
    fn is_at_end(&self) -> bool {
        // Even then, the reads may lag behind.
        let is_all_used = self.guess.uses.unused == 0;
        match &self.streams.current {
            Some(expected) => is_all_used || (!expected.is_row && expected.stream.is_all_begun()),
            None => (is_all_used || self.guess.row_end().is_none()) && self.cursor.is_at_end(is_all_used),
        }
    }
}

impl LeadWork {
    fn lock(&self) -> MutexGuard<'_, Following> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn turn_off(&self) {
        self.is_off.store(true, Ordering::Relaxed);
        self.file.run.end();
        let released = {
            let mut state = self.lock();
            state.is_closed = true;
            self.file.seat.give_up();
            (state.streams.current.take(), state.opened.take())
        };
        self.moved.notify_all();
        if let (Some(expected), _) = &released {
            expected.stream.stop();
        }
        drop(released);
    }

    /// Follows the program: updates the predictions with a request, and answers it.
    fn follow(&self, opened: &Opened, number: usize, selection: Option<&Selection>) -> Result<Answer> {
        let mut state = self.lock();
        let (last, had_parts) = (state.guess.last, state.guess.has_parts);
        let request = state.guess.note(&self.file.tensors, number, selection, thread::current().id());
        if self.fills_cache && !state.guess.has_parts {
            let len = self.file.tensors.ranges[number].1;
            let near = state.guess.uses.near_tensors(&self.file.tensors);
            state.cursor.note((number, len), request, near, self.file.budget(self.file.first_bytes(len)));
            let (is_ended, is_over) = (state.adviser == Adviser::Ended, state.guess.uses.unused == 0);
            if !is_ended && !state.is_closed && !state.is_at_end() {
                self.file.seat.take(); // may have been given up, but the program is back
            }
            drop(state);
            if is_ended {
                if is_over {
                    self.turn_off();
                }
                return Ok(Answer::InFile);
            }
            self.moved.notify_all();
            // If memory is short, the previous tensor makes room for the next ones.
            if let Some(last) = last.filter(|&last| last != number) {
                let (offset, len) = self.file.tensors.ranges[last];
                page_cache::mark_used(opened, offset, len);
            }
            return Ok(Answer::InFile);
        }
        // The current stream follows an outdated order. In the new order, its place numbers mean other tensors.
        let is_over = request.has_turned || state.guess.has_parts != had_parts;
        let dropped = if is_over { state.streams.current.take() } else { None };
        let Following { guess, streams, opened, .. } = &mut *state;
        let answer = opened.as_ref().map_or(Ok(Answer::InFile), |opened| {
            streams.answer(&self.file, opened, guess, (number, request), selection)
        });
        if let Some(expected) = &streams.current {
            // From there on, another lead of this process reads.
            expected.end_before(self.file.run.end_behind(guess.order, request.place));
        }
        state.awaited += usize::from(matches!(answer, Ok(Answer::InStream(..))));
        // The program may skip the next tensors of this stream, too.
        let outdated = if request.has_left_out { state.streams.current.take() } else { None };
        drop(state);
        drop((dropped, outdated));
        self.moved.notify_all();
        answer
    }

    /// Asks the kernel for the next tensors, while the program stays close behind.
    fn advise(&self, opened: &Opened, prefetcher: Option<Prefetcher>) {
        let off = TurnOff(self);
        let mut ahead = Ahead::default();
        ahead.prefetcher = prefetcher;
        let is_of_use = loop {
            let Some(range) = self.next_range() else { break true };
            // Best effort: without the request, bytes are read on use.
            let asked = ahead.ask(&[range], |_| Ok(opened));
            if asked.is_err() || ahead.is_warm() {
                break false;
            }
        };
        let mut state = self.lock();
        state.adviser = Adviser::Ended;
        let goes_on = !state.is_left && state.guess.uses.unused > 0;
        if is_of_use && (state.guess.has_parts || goes_on) {
            std::mem::forget(off); // streams continue, or the kernel was asked for everything
        }
        if is_of_use && !state.guess.has_parts {
            self.file.seat.give_up();
        }
    }

    /// Waits until the lead may grow. Returns the next range to ask for, or `None` at the end.
    fn next_range(&self) -> Option<ByteRange> {
        let mut state = self.lock();
        loop {
            match self.next_step(&mut state) {
                LeadStep::Ask(range) => return Some(range),
                LeadStep::Wait => state = self.moved.wait(state).unwrap_or_else(PoisonError::into_inner),
                LeadStep::End => return None,
            }
        }
    }

    /// Returns the next action of the advising thread.
    fn next_step(&self, state: &mut Following) -> LeadStep {
        let Following { cursor, guess, opened, is_left, is_closed, .. } = &mut *state;
        let is_left = *is_left && !opened.as_ref().is_some_and(|opened| opened.has_views());
        if *is_closed || guess.has_parts || is_left {
            return LeadStep::End;
        }
        let step = cursor.next(&self.file.tensors, guess);
        if step == LeadStep::Wait && state.is_at_end() {
            self.file.seat.give_up(); // the last request may have come before the thread got here
        }
        step
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::mapped_file::RequestedMode;
    use crate::mapped_file::test_file;
    use crate::natural::NameKinds;

    /// A fixed limit, independent of the available memory.
    const LIMIT_BYTES: u64 = 1 << 30;
    const ROW_LEN: u64 = 64 << 10;
    const ROW_TENSORS: usize = 160;

    /// Makes a lead for a program that has taken three rows of three tensors. The last row begins at place 60.
    fn lead_after_rows(opened: &Arc<Opened>) -> Lead {
        let ranges = (0..ROW_TENSORS as u64).map(|number| (number * ROW_LEN, ROW_LEN)).collect();
        let tensors = FileTensors::new(ranges, vec![NameKinds { kind: 0, series: 0 }; ROW_TENSORS], vec![])
            .expect("memory");
        let lead = Lead::new(opened.clone(), tensors, Some(LIMIT_BYTES), true, false).expect("memory");
        for number in [120, 0, 60].into_iter().flat_map(|row| row..row + 3) {
            let answer = lead.ask(opened, number * ROW_LEN, None);
            assert!(lead.at_end().is_none());
            if let Answer::InStream(stream, want) = answer {
                stream.take(want, Duration::from_secs(60)).expect("read");
            }
        }
        lead
    }

    /// Returns how many bytes the thread asks for before it waits.
    fn bytes_asked_for(lead: &Lead) -> u64 {
        let mut bytes = 0;
        loop {
            match lead.work.next_step(&mut lead.work.lock()) {
                LeadStep::Ask(range) => bytes += range.len,
                LeadStep::Wait => return bytes,
                LeadStep::End => panic!("it is over"),
            }
        }
    }

    fn places(lead: &Lead) -> Option<Vec<usize>> {
        lead.work.lock().streams.current.as_ref().map(|expected| expected.places.clone())
    }

    #[test]
    fn after_rows_of_the_same_length_a_stream_reads_one_row() {
        let opened = test_file::opened(&vec![1; ROW_TENSORS * ROW_LEN as usize], RequestedMode::Read);
        let lead = lead_after_rows(&opened);
        assert_eq!(places(&lead), Some(vec![60, 61, 62]));
        lead.ask(&opened, 63 * ROW_LEN, None);
        let rest = (63..120).chain(123..ROW_TENSORS).collect();
        assert_eq!(places(&lead), Some(rest), "the row goes on");
    }

    #[test]
    fn at_a_turn_places_of_the_old_order_are_forgotten() {
        const TENSORS: u64 = 11;
        let opened = test_file::opened(&vec![1; (TENSORS * ROW_LEN) as usize], RequestedMode::Read);
        let ranges = (0..TENSORS).map(|number| (number * ROW_LEN, ROW_LEN)).collect();
        let names = vec![NameKinds { kind: 0, series: 0 }; TENSORS as usize];
        let reverse = (0..TENSORS as u32).rev().collect();
        let tensors = FileTensors::new(ranges, names, vec![reverse]).expect("memory");
        let lead = Lead::new(opened.clone(), tensors, Some(LIMIT_BYTES), true, false).expect("memory");
        // Returns the number of the tensor in the stream's answer.
        let answered = |number: u64| {
            let Answer::InStream(stream, want) = lead.ask(&opened, number * ROW_LEN, None) else {
                return None;
            };
            let state = lead.work.lock();
            let current = state.streams.current.as_ref().filter(|it| Arc::ptr_eq(&it.stream, &stream))?;
            Some(current.wants[want].offset / ROW_LEN)
        };
        assert_eq!([2, 3, 5].map(answered), [None, Some(3), Some(5)]);
        // Tensor 4 in the reverse order and tensor 6 in the file's order have the same place number.
        assert_eq!(answered(4), Some(4));
    }

    #[test]
    fn the_stream_of_a_row_is_not_at_the_end_of_the_file() {
        let opened = test_file::opened(&vec![1; ROW_TENSORS * ROW_LEN as usize], RequestedMode::Read);
        let lead = lead_after_rows(&opened);
        lead.ask(&opened, 64 * ROW_LEN, None);
        assert_eq!(places(&lead), Some(vec![60, 61, 62]), "nothing shows that others follow");
        assert!(lead.at_end().is_none());
    }

    #[test]
    fn other_leads_may_begin_once_the_thread_reaches_the_end_after_the_last_request() {
        const LEN: u64 = 1 << 20;
        let opened = test_file::opened(&vec![1; 4 * LEN as usize], RequestedMode::Auto);
        let named = [&b"a"[..], b"b", b"c", b"d"].into_iter().zip((0..4).map(|number| (number * LEN, LEN)));
        let tensors = FileTensors::of(&named.collect::<Vec<_>>()).expect("memory");
        let lead = Lead::new(opened.clone(), tensors, Some(LIMIT_BYTES), true, false).expect("memory");
        // The test takes the turns of the advising thread.
        lead.work.lock().adviser = Adviser::Runs;
        for number in [1, 2] {
            lead.ask(&opened, number * LEN, None);
            assert!(lead.at_end().is_none());
        }
        assert!(lead.work.file.seat.is_taken());
        assert_eq!(bytes_asked_for(&lead), 3 * LEN, "what was used, and what comes next");
        assert!(!lead.work.file.seat.is_taken() && lead.at_end().is_some());
        lead.ask(&opened, 0, None);
        assert!(lead.work.file.seat.is_taken(), "the consumer went back");
        assert_eq!(bytes_asked_for(&lead), LEN, "what was used before is not read again");
        assert!(lead.work.file.seat.is_taken() && lead.at_end().is_none());
        lead.work.turn_off();
        assert_eq!(lead.work.next_step(&mut lead.work.lock()), LeadStep::End);
    }

    #[test]
    fn the_lead_of_the_next_file_has_the_pace_of_the_previous_one() {
        const LEN: u64 = 1 << 20;
        let opened = test_file::opened(&vec![1; 2 * LEN as usize], RequestedMode::Auto);
        let named: [(&[u8], (u64, u64)); 2] = [(b"a", (0, LEN)), (b"b", (LEN, LEN))];
        let made = || {
            let tensors = FileTensors::of(&named).expect("memory");
            Lead::new(opened.clone(), tensors, Some(LIMIT_BYTES), true, true).expect("memory")
        };
        let (lead, next) = (made(), made());
        assert!(lead.at_end().is_none());
        for (_, (offset, _)) in named {
            lead.ask(&opened, offset, None);
        }
        let handover = lead.at_end().expect("all was asked for");
        next.begin(&handover).expect("begun");
        let paces = [&lead, &next].map(|lead| lead.work.lock().streams.pace.clone());
        assert!(Arc::ptr_eq(&paces[0], &paces[1]));
    }
}

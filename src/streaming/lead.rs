//! [`Lead`]: reading ahead of a consumer that asks for the tensors of one file one by one, and never says which it
//! will ask for.
//!
//! ```text
//!   reads come out of the page cache ──> advising ──(all was asked for; pages were cached)──> off
//!                                        a thread asks the kernel for what comes next         ▲
//!   they do not ───────────────────────> reading ──(a read failed; memory is short)───────────┘
//!                                        a stream reads what comes next into owned memory
//! ```
//!
//! What comes next is guessed from what was asked for last: tensors in the order of the data, or in another one (of
//! their names, say) as soon as that shows. The lead begins with the first right guess. Each further one doubles it, up
//! to its limit, where a thread advises; a stream has a budget of its own. After a jump it begins anew.

use std::ops::Range;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use crate::error::Result;
use crate::fetch::ahead::Ahead;
use crate::fetch::budget::Budget;
use crate::fetch::crew::{Crew, Limits};
use crate::fetch::ranges::{ByteRange, FileId};
use crate::mapped_file::{Mode, Opened, page_cache};
use crate::os::process::{fork, limits};

use crate::slicing::PIECE_BYTES;

use super::engine::{Landed, Stream, StreamLimits};
use super::plan::Want;
use super::strategy::{self, drawn};

/// Smaller files are read before a lead would help.
const LEAST_FILE_BYTES: u64 = 16 << 20;
/// Pages that are probed before a lead begins, the last one of the file among them: a file that was read in part is
/// cached up to some place.
const PROBED_PAGES: u64 = 4;
/// Bytes that the kernel is asked for at a time.
const STEP_BYTES: u64 = 1 << 20;
/// The lead after a jump.
const FIRST_LEAD_BYTES: u64 = 16 << 20;
/// Tensors of several threads come in nearly the right order. A request this near is no jump.
const NEAR_TENSORS: usize = 32;
/// The lead of a caller that names none: this share of the available memory, and no more than [`LEAD_BYTES`].
const MEMORY_SHARE: u64 = 4;
const LEAD_BYTES: u64 = 1 << 30;
/// Bytes of a stream that are read ahead: what storage of 1 GB/s with 125 ms latency has on its way.
const STREAM_BYTES: u64 = 128 << 20;
/// Bytes that are taken between two looks at the available memory.
const LOOK_BYTES: u64 = 64 << 20;
/// Leads at a time, each with a thread, descriptors or memory of its own. Other files are used without one.
const MAX_LEADS: usize = 8;

/// The number of leads of this process that are not off.
static LEADS: AtomicUsize = AtomicUsize::new(0);

/// The answer to a request.
#[derive(Debug)]
pub enum Answer {
    /// The tensor is to be used through the file.
    InFile,
    /// The stream will have the tensor's bytes, under this number.
    InStream(Arc<Stream>, usize),
}

/// Reads ahead of the consumer of one file.
#[derive(Debug)]
pub struct Lead {
    work: Arc<LeadWork>,
    crew: Arc<Crew>,
    process: u64,
}

#[derive(Debug)]
struct LeadWork {
    /// Offset in the file and length of each tensor, in order of the data.
    ranges: Vec<(u64, u64)>,
    /// The orders in which tensors may be asked for; that of the data comes first.
    orders: Vec<TensorOrder>,
    limit_bytes: u64,
    /// Whether a thread advises, or else a stream reads.
    is_advising: bool,
    is_off: AtomicBool,
    state: Mutex<Following>,
    /// Signals that the consumer has moved.
    moved: Condvar,
}

/// The tensors in some order, and the place of each in it.
#[derive(Debug)]
struct TensorOrder {
    numbers: Vec<u32>,
    places: Vec<u32>,
}

impl TensorOrder {
    fn new(numbers: Vec<u32>) -> Self {
        let mut places = vec![0; numbers.len()];
        for (place, &number) in numbers.iter().enumerate() {
            places[number as usize] = place as u32;
        }
        Self { numbers, places }
    }
}

#[derive(Debug)]
struct Following {
    /// The tensor that was asked for last.
    last: Option<usize>,
    /// The order that the consumer seems to follow.
    order: usize,
    /// The tensor to advise on next, by its place, and how many of its bytes were advised on.
    cursor: (usize, u64),
    /// Bytes that were advised on and whose tensors were not asked for.
    budget: Budget,
    /// For each tensor the bytes that count against the budget, and since which jump.
    advised: Vec<(u32, u64)>,
    used: Vec<bool>,
    unused: usize,
    jumps: u32,
    /// Whether the last request was to be expected. After a jump nothing shows yet that other tensors will follow.
    guesses_right: bool,
    /// The stream that reads, and the place of its first tensor.
    stream: Option<(Arc<Stream>, usize)>,
    /// Bytes that may still be advised on once the consumer has asked for all that it wants.
    last_bytes: Option<u64>,
    /// Bytes taken since memory was looked at.
    taken_bytes: u64,
    /// The file; `None` once the lead is off, and where a thread advises, which has it.
    opened: Option<Arc<Opened>>,
    is_closed: bool,
}

impl Following {
    /// Notes that a tensor is asked for. Returns whether this is the first time.
    fn use_up(&mut self, number: usize) -> bool {
        let is_first = !std::mem::replace(&mut self.used[number], true);
        self.unused -= usize::from(is_first);
        is_first
    }
}

/// Turns a lead off when its thread ends, also by a panic.
struct TurnOff<'a>(&'a LeadWork);

impl Drop for TurnOff<'_> {
    fn drop(&mut self) {
        self.0.turn_off();
    }
}

impl Lead {
    /// Returns whether a file is worth a lead of `limit_bytes`: it is large, and pages of it are not cached. `seed`
    /// picks those that are probed.
    pub fn is_worth_it(opened: &Opened, limit_bytes: Option<u64>, seed: u64) -> bool {
        let size = opened.size();
        let is_cached = |probe| {
            let offset = if probe == 0 { size - 1 } else { drawn(seed, probe, size) };
            strategy::is_cached(opened, offset, seed)
        };
        let has_room = LEADS.load(Ordering::Relaxed) < MAX_LEADS;
        size >= LEAST_FILE_BYTES && limit_bytes != Some(0) && has_room && !(0..PROBED_PAGES).all(is_cached)
    }

    /// Makes a lead for the tensors of a file, none of them empty, which have offset and length each and come in order
    /// of the data. `orders` has their numbers in other orders in which they may be asked for. Nothing is read before one
    /// is.
    pub fn new(
        opened: Arc<Opened>,
        ranges: Vec<(u64, u64)>,
        orders: Vec<Vec<u32>>,
        limit_bytes: Option<u64>,
    ) -> Self {
        let by_offset = (0..ranges.len() as u32).collect();
        let orders = std::iter::once(by_offset).chain(orders).map(TensorOrder::new).collect();
        let limit_bytes =
            limit_bytes.unwrap_or_else(|| (limits::available_memory_bytes() / MEMORY_SHARE).min(LEAD_BYTES));
        // A private mapping that was asked for says nothing about the page cache.
        let facts = &opened.facts;
        let is_advising =
            opened.reads_from_cache() || (facts.mode == Mode::Private && facts.reason.is_none());
        let state = Following {
            last: None,
            order: 0,
            cursor: (0, 0),
            budget: Budget::new(FIRST_LEAD_BYTES.min(limit_bytes), limit_bytes),
            advised: vec![(0, 0); ranges.len()],
            used: vec![false; ranges.len()],
            unused: ranges.len(),
            jumps: 0,
            guesses_right: false,
            last_bytes: None,
            stream: None,
            taken_bytes: 0,
            opened: (!is_advising).then(|| opened.clone()),
            is_closed: false,
        };
        let work = LeadWork {
            is_advising,
            ranges,
            orders,
            limit_bytes,
            is_off: AtomicBool::new(false),
            state: Mutex::new(state),
            moved: Condvar::new(),
        };
        let lead = Self {
            work: Arc::new(work),
            crew: Arc::new(Crew::new(Limits { first: 1, most: 1 })),
            process: fork::generation(),
        };
        LEADS.fetch_add(1, Ordering::Relaxed);
        if is_advising {
            let ours = lead.work.clone();
            if lead.crew.assist("pagestream-lead", move || ours.advise(&opened)).is_err() {
                lead.work.turn_off();
            }
        }
        lead
    }

    /// Notes that the tensor at `offset` of the file, which is not empty, is asked for.
    pub fn ask(&self, offset: u64) -> Answer {
        let work = &self.work;
        let found = work.ranges.binary_search_by_key(&offset, |&(offset, _)| offset);
        let (Ok(number), false, true) = (found, self.is_off(), self.process == fork::generation()) else {
            return Answer::InFile;
        };
        if work.is_advising {
            work.note(number);
            return Answer::InFile;
        }
        // Where no thread can be started, say, tensors are used as without a lead.
        work.find(number).unwrap_or_else(|_| {
            work.turn_off();
            Answer::InFile
        })
    }

    /// Returns whether requests have no effect any more.
    pub fn is_off(&self) -> bool {
        self.work.is_off.load(Ordering::Relaxed)
    }

    /// Notes that a tensor was taken from the stream. Ends the lead where the consumer keeps so much that memory is
    /// short.
    pub fn note_taken(&self, landed: &Landed) {
        let is_time = {
            let mut state = self.work.lock();
            state.taken_bytes += landed.place.len as u64;
            let is_time = state.taken_bytes >= LOOK_BYTES;
            state.taken_bytes = if is_time { 0 } else { state.taken_bytes };
            is_time
        };
        let least_bytes = 2 * self.work.limit_bytes.min(STREAM_BYTES);
        if self.work.lock().unused == 0 || (is_time && limits::available_memory_bytes() < least_bytes) {
            self.work.turn_off();
        }
    }

    /// Waits, at most for `patience`, until the kernel was asked for all that was asked for here, or for as much as
    /// memory can hold. Returns whether it was.
    pub fn finish(&self, patience: Duration) -> bool {
        if !self.work.is_advising || self.process != fork::generation() {
            return true;
        }
        self.work.lock().last_bytes.get_or_insert_with(|| limits::available_memory_bytes() / 2);
        self.work.moved.notify_all();
        self.crew.wait_for_end(patience);
        self.is_off() || self.crew.threads() == 0
    }

    /// Stops reading ahead. A thread that is asking the kernel ends by itself.
    pub fn close(&self) {
        if self.process == fork::generation() {
            self.work.turn_off();
        }
    }
}

impl Drop for Lead {
    fn drop(&mut self) {
        if self.process == fork::generation() {
            self.work.turn_off();
        } else {
            // The lock may be one that a thread of the parent held: nothing is touched.
            std::mem::forget(self.work.clone());
        }
    }
}

impl LeadWork {
    fn lock(&self) -> MutexGuard<'_, Following> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn turn_off(&self) {
        if !self.is_off.swap(true, Ordering::Relaxed) {
            LEADS.fetch_sub(1, Ordering::Relaxed);
        }
        let released = {
            let mut state = self.lock();
            state.is_closed = true;
            (state.stream.take(), state.opened.take())
        };
        self.moved.notify_all();
        if let (Some((stream, _)), _) = &released {
            stream.stop();
        }
        drop(released);
    }

    fn place_of(&self, number: usize, order: usize) -> usize {
        self.orders[order].places[number] as usize
    }

    fn number_at(&self, place: usize, order: usize) -> usize {
        self.orders[order].numbers[place] as usize
    }

    /// Notes which tensor is asked for. Returns its place, and whether it was to be expected.
    fn guess(&self, state: &mut Following, number: usize) -> (usize, bool) {
        let last = state.last.replace(number);
        let follows = |order: usize| {
            last.is_some_and(|last| self.place_of(number, order) == self.place_of(last, order) + 1)
        };
        let is_next = follows(state.order);
        if let (false, Some(other)) = (is_next, (0..self.orders.len()).find(|&order| follows(order))) {
            state.order = other;
            state.cursor = (self.place_of(number, other), 0);
            return (state.cursor.0, true);
        }
        (self.place_of(number, state.order), is_next)
    }

    /// Follows a consumer that uses the file's pages.
    fn note(&self, number: usize) {
        let mut state = self.lock();
        let (place, is_next) = self.guess(&mut state, number);
        let (since, bytes) = state.advised[number];
        let was_advised = bytes > 0 && since == state.jumps;
        if was_advised && !state.used[number] {
            state.budget.give_back(bytes);
        }
        state.use_up(number);
        let is_near = (state.cursor.0..state.cursor.0 + NEAR_TENSORS).contains(&place);
        if was_advised || is_next || (is_near && state.cursor != (0, 0)) {
            state.budget.double();
            state.guesses_right = true;
        } else {
            state.guesses_right = false;
            state.jumps += 1;
            state.budget = Budget::new(FIRST_LEAD_BYTES.min(self.limit_bytes), self.limit_bytes);
            state.cursor = (place, 0);
        }
        drop(state);
        self.moved.notify_one();
    }

    /// Asks the kernel for what comes next, as long as the consumer is near.
    fn advise(&self, opened: &Opened) {
        let _off = TurnOff(self);
        let mut ahead = Ahead::default();
        ahead.prefetcher = page_cache::Prefetcher::new(opened);
        while let Some(range) = self.next_range() {
            // Best effort: what is not asked for is read when it is used.
            let asked = ahead.ask(&[range], |_| Ok(opened));
            if asked.is_err() || ahead.is_warm() {
                break;
            }
        }
    }

    /// Waits until the lead is too short. Returns what to ask for next; `None` at the end.
    fn next_range(&self) -> Option<ByteRange> {
        let mut state = self.lock();
        loop {
            if state.is_closed {
                return None;
            }
            let (place, done) = state.cursor;
            if place >= self.ranges.len() {
                if state.unused == 0 || state.last_bytes.is_some() {
                    return None;
                }
                // The consumer may have begun in the middle.
                state = self.moved.wait(state).unwrap_or_else(PoisonError::into_inner);
                continue;
            }
            let number = self.number_at(place, state.order);
            let (offset, len) = self.ranges[number];
            let is_done = done == 0 && state.advised[number].1 > 0 && state.advised[number].0 == state.jumps;
            if done >= len || is_done {
                state.cursor = (place + 1, 0);
                continue;
            }
            let may_lead = state.guesses_right && state.budget.has_room();
            if !state.used[number] && !may_lead && state.last_bytes.is_none() {
                state = self.moved.wait(state).unwrap_or_else(PoisonError::into_inner);
                continue;
            }
            let bytes = STEP_BYTES.min(len - done);
            if let Some(left) = state.last_bytes {
                state.last_bytes = Some(left.checked_sub(bytes).filter(|_| state.used[number])?);
            }
            state.cursor.1 += bytes;
            if !state.used[number] {
                state.budget.take(bytes);
            }
            let jumps = state.jumps;
            let (since, before) = state.advised[number];
            state.advised[number] = (jumps, if since == jumps { before + bytes } else { bytes });
            return Some(ByteRange { file: FileId::default(), offset: offset + done, len: bytes });
        }
    }

    /// Finds a tensor in the stream that reads what comes next, or starts another one.
    fn find(&self, number: usize) -> Result<Answer> {
        let mut state = self.lock();
        let order = state.order;
        let (place, is_next) = self.guess(&mut state, number);
        // After a change of order the stream does not have what comes next.
        let stream = state.stream.as_ref().filter(|_| state.order == order);
        let known = stream.and_then(|(stream, first)| {
            let want = place.checked_sub(*first)?;
            stream.has(want, NEAR_TENSORS).then(|| (stream.clone(), want))
        });
        if !state.use_up(number) {
            return Ok(Answer::InFile);
        }
        if let Some((stream, want)) = known {
            return Ok(Answer::InStream(stream, want));
        }
        let Some(opened) = state.opened.clone() else { return Ok(Answer::InFile) };
        let len = self.ranges[number].1;
        if len > self.limit_bytes || (!is_next && len <= PIECE_BYTES) {
            return Ok(Answer::InFile);
        }
        if !is_next {
            // It was left behind, or nothing shows yet that others will follow: it is read alone.
            drop(state);
            return Ok(Answer::InStream(Arc::new(self.start_stream(opened, place..place + 1, order)?), 0));
        }
        let stream = Arc::new(self.start_stream(opened, place..self.ranges.len(), state.order)?);
        state.stream = Some((stream.clone(), place));
        Ok(Answer::InStream(stream, 0))
    }

    fn start_stream(&self, opened: Arc<Opened>, places: Range<usize>, order: usize) -> Result<Stream> {
        let wants = places.map(|place| {
            let (offset, len) = self.ranges[self.number_at(place, order)];
            Want { file: 0, offset, len, selection: None }
        });
        let limits =
            StreamLimits { memory_bytes: self.limit_bytes.min(STREAM_BYTES), ..StreamLimits::default() };
        Stream::start(&wants.collect::<Vec<_>>(), Box::new(move |_| Ok(opened.clone())), limits)
    }
}

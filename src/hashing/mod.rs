//! Computes checksums of whole files, on threads of its own: [`Hashing`].
//!
//! ```text
//!   file ──prepare──> lanes ──step──> pieces: pread ──in order──> hashes of the lane ──> digests ──finish──> outcome
//!                                        ▲ buffers ──────────────────┘
//! ```
//!
//! A lane ([`mod@lanes`]) is a run of a file that is hashed from beginning to end. Any thread may read its pieces. The
//! thread that reads the next piece hashes it, and also the pieces after it that are already in memory. A piece that
//! arrives too early waits in its buffer, so the number of buffers bounds the memory. Threads take pieces in order, so
//! the next piece is always being read.
//!
//! **What it promises.** Each file has one outcome: its digests, or an error if it was truncated or rewritten
//! meanwhile. The first error ends the work. The page cache stays as it was.
//!
//! **Callers:** the binding, for `verify`, `write_checksums` and the command.

use std::collections::{BTreeMap, VecDeque};
use std::fmt;
use std::ops::Range;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use crate::allocate::OutOfMemory;
use crate::error::{Error, Result};
use crate::fetch::background::{Background, BackgroundWork};
use crate::fetch::budget::{Budget, default_memory_bytes};
use crate::fetch::crew::{Limits, Step, Wait, Work};
use crate::fetch::next::Next;
use crate::mapped_file::Opened;
use crate::mapped_file::page_cache;
use crate::os::memory::{Uninit, zeroed};

mod lanes;

use lanes::{LaneHasher, PIECE_BYTES, lanes, piece_end};

/// Buffers for each lane at first. More pieces would no longer be in the processor's cache when their turn comes. While
/// storage is slow, the number of buffers doubles, up to `MOST_PIECES` in total.
const LANE_PIECES: u64 = 4;
const MOST_PIECES: u64 = 128;
/// Threads while storage is slow.
const MOST_THREADS: usize = 64;

/// The bytes of a file to hash, and the hashes to compute.
#[derive(Debug)]
pub struct HashRequest {
    pub opened: Arc<Opened>,
    /// Number of bytes to hash, from the beginning of the file.
    pub len: u64,
    /// Ends of the spans that have their own hashes. If there are any, they are adjacent and cover the file from its
    /// beginning to `len`.
    pub span_ends: Vec<u64>,
    /// Whether to compute the SHA-256 of all bytes.
    pub sha256: bool,
}

#[derive(Debug, Default, Clone, PartialEq, Eq)]
pub struct Digests {
    /// The 128-bit XXH3 of each span.
    pub spans: Vec<u128>,
    pub sha256: Option<[u8; 32]>,
}

/// Turns the digests of a file into its outcome.
pub type Finish<T> = Box<dyn FnOnce(Digests) -> T + Send>;

/// How to get the outcome of a file.
pub enum Prepared<T> {
    Hash(HashRequest, Finish<T>),
    /// The outcome is known without hashing.
    Known(T),
}

/// Opens the file with a given number and decides how to hash it.
pub type Prepare<T> = dyn Fn(usize) -> Result<Prepared<T>> + Send + Sync;

/// Hashes files on threads of its own. Outcomes come in any order.
#[derive(Debug)]
pub struct Hashing<T: Send + 'static>(Background<HashWork<T>>);

/// A file that is being hashed.
struct Job<T> {
    opened: Arc<Opened>,
    state: Mutex<JobState<T>>,
}

struct JobState<T> {
    digests: Digests,
    lanes_left: usize,
    finish: Option<Finish<T>>,
}

/// A run of a file that is hashed in order.
struct Lane<T> {
    job: Arc<Job<T>>,
    /// The numbers of its spans.
    spans: Range<usize>,
    end: u64,
    state: Mutex<LaneState>,
}

struct LaneState {
    /// Offset of the next piece to hash.
    next: u64,
    /// Pieces that have been read, by offset.
    landed: BTreeMap<u64, Vec<u8>>,
    /// `None` while a thread is hashing.
    hasher: Option<LaneHasher>,
}

/// The next action of a thread.
enum HashTask<T> {
    Prepare(usize),
    Read { lane: Arc<Lane<T>>, range: Range<u64>, buffer: Vec<u8> },
}

struct HashState<T> {
    next_file: usize,
    unfinished_files: usize,
    /// Lanes with pieces to read, each with the offset of its next piece.
    lanes: VecDeque<(Arc<Lane<T>>, u64)>,
    free: Vec<Vec<u8>>,
    /// The number of pieces in memory, and its limit.
    pieces: Budget,
    outcomes: VecDeque<T>,
    failure: Option<Error>,
    is_over: bool,
}

struct HashWork<T> {
    files: Vec<usize>,
    prepare: Box<Prepare<T>>,
    /// Number of lanes that are read at a time.
    width: usize,
    state: Mutex<HashState<T>>,
    done_bytes: AtomicU64,
    /// Signals new lanes, files or buffers.
    task_ready: Condvar,
    /// Signals that a file has its outcome, or that no more will come.
    outcome_ready: Condvar,
}

impl<T> fmt::Debug for HashWork<T> {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.debug_struct("HashWork").field("files", &self.files).finish_non_exhaustive()
    }
}

fn locked<T>(state: &Mutex<T>) -> MutexGuard<'_, T> {
    state.lock().unwrap_or_else(PoisonError::into_inner)
}

impl<T: Send + 'static> Hashing<T> {
    /// Starts to hash the files with these numbers. `threads` sets the number of threads, regardless of the storage.
    pub fn start(files: Vec<usize>, prepare: Box<Prepare<T>>, threads: Option<usize>) -> Result<Self> {
        let processors = std::thread::available_parallelism().map_or(1, std::num::NonZero::get);
        let limits =
            threads.map_or(Limits { first: processors, most: MOST_THREADS.max(processors) }, |given| {
                Limits { first: given, most: given }
            });
        let width = limits.first.min(processors);
        let first = LANE_PIECES * width as u64;
        let most = (default_memory_bytes() / PIECE_BYTES).clamp(LANE_PIECES, MOST_PIECES);
        let state = HashState {
            next_file: 0,
            unfinished_files: files.len(),
            lanes: VecDeque::new(),
            free: Vec::new(),
            pieces: Budget::new(first.min(most), most),
            outcomes: VecDeque::new(),
            failure: None,
            is_over: false,
        };
        let work = HashWork {
            files,
            prepare,
            width,
            state: Mutex::new(state),
            done_bytes: AtomicU64::new(0),
            task_ready: Condvar::new(),
            outcome_ready: Condvar::new(),
        };
        Background::start("pagestream-hash", work, limits).map(Self)
    }

    /// Takes the outcome of a file. Waits for it at most for `patience`.
    pub fn next(&self, patience: Duration) -> Result<Next<T>> {
        self.0.check_process("the threads that verify")?;
        let deadline = Instant::now() + patience;
        let mut state = locked(&self.0.state);
        loop {
            if let Some(outcome) = state.outcomes.pop_front() {
                return Ok(Next::Ready(outcome));
            }
            if let Some(error) = state.failure.take() {
                return Err(error);
            }
            if state.is_over || state.unfinished_files == 0 {
                return Ok(Next::End);
            }
            let left = deadline.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return Ok(Next::NotYet);
            }
            let waited = self.0.outcome_ready.wait_timeout(state, left);
            state = waited.unwrap_or_else(PoisonError::into_inner).0;
        }
    }

    /// Returns how many bytes have been hashed.
    pub fn done_bytes(&self) -> u64 {
        self.0.done_bytes.load(Ordering::Relaxed)
    }

    /// Stops the threads and waits for them for a limited time, because a read from dead storage may never return.
    pub fn close(&self) {
        self.0.close();
    }
}

impl<T: Send + 'static> HashWork<T> {
    /// Waits for a task. Returns `None` if there will be no more.
    fn wait_for_task(&self) -> Option<HashTask<T>> {
        let mut state = locked(&self.state);
        loop {
            if state.is_over || state.unfinished_files == 0 {
                return None;
            }
            if state.lanes.len() < self.width && state.next_file < self.files.len() {
                state.next_file += 1;
                return Some(HashTask::Prepare(self.files[state.next_file - 1]));
            }
            if !state.lanes.is_empty() {
                match state.take_buffer() {
                    Ok(Some(buffer)) => {
                        if let Some((lane, range)) = state.take_piece(self.width) {
                            return Some(HashTask::Read { lane, range, buffer });
                        }
                    }
                    Ok(None) => {}
                    Err(error) => {
                        drop(state);
                        self.end(Some(error.into()));
                        return None;
                    }
                }
            }
            state = self.task_ready.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
    }

    /// Adds the lanes of a file, or its outcome.
    fn enter(&self, prepared: Prepared<T>) {
        match prepared {
            Prepared::Known(outcome) => self.enter_outcome(outcome),
            Prepared::Hash(what, finish) => {
                let spans = lanes(&what.span_ends, what.len, what.sha256);
                let digests = Digests { spans: vec![0; what.span_ends.len()], sha256: None };
                let state = JobState { digests, lanes_left: spans.len(), finish: Some(finish) };
                let job = Arc::new(Job { opened: what.opened, state: Mutex::new(state) });
                let lane = |(range, spans): (Range<u64>, Range<usize>)| {
                    let ends = &what.span_ends[spans.clone()];
                    let hasher = LaneHasher::new(range.start, ends, what.sha256);
                    let state =
                        LaneState { next: range.start, landed: BTreeMap::new(), hasher: Some(hasher) };
                    let lane = Lane { job: job.clone(), spans, end: range.end, state: Mutex::new(state) };
                    (Arc::new(lane), range.start)
                };
                let mut state = locked(&self.state);
                if !state.is_over {
                    state.lanes.extend(spans.into_iter().map(lane));
                }
            }
        }
        self.task_ready.notify_all();
    }

    fn enter_outcome(&self, outcome: T) {
        let mut state = locked(&self.state);
        state.outcomes.push_back(outcome);
        state.unfinished_files -= 1;
        if state.unfinished_files == 0 {
            self.task_ready.notify_all();
        }
        self.outcome_ready.notify_all();
    }

    /// Stores a piece. If it is the next one and no other thread hashes this lane, hashes it and the pieces after it
    /// that are in memory.
    fn deliver(&self, lane: &Lane<T>, offset: u64, piece: Vec<u8>) -> Result<()> {
        let mut state = locked(&lane.state);
        state.landed.insert(offset, piece);
        let Some(mut hasher) = state.hasher.take() else { return Ok(()) };
        loop {
            let next = state.next;
            let Some(piece) = state.landed.remove(&next) else {
                if next < lane.end {
                    state.hasher = Some(hasher);
                    return Ok(());
                }
                drop(state);
                return self.finish_lane(lane, hasher);
            };
            drop(state);
            let len = piece_end(next, lane.end) - next;
            hasher.update(&piece[..len as usize]);
            self.done_bytes.fetch_add(len, Ordering::Relaxed);
            locked(&self.state).give_back(piece);
            self.task_ready.notify_one();
            state = locked(&lane.state);
            state.next = next + len;
        }
    }

    fn finish_lane(&self, lane: &Lane<T>, hasher: LaneHasher) -> Result<()> {
        let (spans, sha256) = hasher.finish();
        {
            let mut state = locked(&lane.job.state);
            state.digests.spans[lane.spans.clone()].copy_from_slice(&spans);
            state.digests.sha256 = sha256;
            state.lanes_left -= 1;
            if state.lanes_left > 0 {
                return Ok(());
            }
        }
        self.finish(&lane.job)
    }

    /// Makes the outcome of a file, if it was not truncated or rewritten meanwhile.
    fn finish(&self, job: &Job<T>) -> Result<()> {
        job.opened.verify_with_server()?;
        let (digests, finish) = {
            let mut state = locked(&job.state);
            (std::mem::take(&mut state.digests), state.finish.take())
        };
        if let Some(finish) = finish {
            self.enter_outcome(finish(digests));
        }
        Ok(())
    }
}

impl<T> HashState<T> {
    /// Returns a buffer. Returns `None` if there is no room or no memory for another one: the thread then waits until a
    /// buffer is returned.
    fn take_buffer(&mut self) -> Result<Option<Vec<u8>>, OutOfMemory> {
        if !self.pieces.has_room() {
            return Ok(None);
        }
        let buffer = match self.free.pop() {
            Some(buffer) => buffer,
            None => match zeroed(PIECE_BYTES as usize, "a piece of a file to hash") {
                Ok(buffer) => buffer,
                Err(_) if !self.pieces.is_unused() => return Ok(None),
                Err(error) => return Err(error),
            },
        };
        self.pieces.take(1);
        Ok(Some(buffer))
    }

    fn give_back(&mut self, buffer: Vec<u8>) {
        self.pieces.give_back(1);
        if !self.is_over {
            self.free.push(buffer);
        }
    }

    /// Takes the next piece of the first lane. The first `width` lanes take turns.
    fn take_piece(&mut self, width: usize) -> Option<(Arc<Lane<T>>, Range<u64>)> {
        let (lane, start) = self.lanes.pop_front()?;
        let end = piece_end(start, lane.end);
        if end < lane.end {
            // Go behind the other lanes that are being read.
            let place = self.lanes.len().min(width - 1);
            self.lanes.insert(place, (lane.clone(), end));
        }
        Some((lane, start..end))
    }
}

impl<T> Job<T> {
    /// Reads a range into the beginning of a buffer. Leaves no pages in the page cache that were not there before.
    fn read(&self, range: &Range<u64>, buffer: &mut [u8]) -> Result<()> {
        let (offset, len) = (range.start, range.end - range.start);
        let before = page_cache::resident_pages(&self.opened, offset, len);
        self.opened.exact_reader().read_into(offset, Uninit::of(&mut buffer[..len as usize]))?;
        if before.is_some() {
            page_cache::restore(&self.opened, offset, len, before.as_ref());
        }
        Ok(())
    }
}

impl<T: Send + 'static> BackgroundWork for HashWork<T> {
    fn end(&self, error: Option<Error>) {
        let mut state = locked(&self.state);
        if !state.is_over {
            state.failure = error;
        }
        state.is_over = true;
        state.lanes.clear();
        state.free.clear();
        self.task_ready.notify_all();
        self.outcome_ready.notify_all();
    }
}

impl<T: Send + 'static> Work for HashWork<T> {
    type Tools = ();

    fn step(&self, (): &mut ()) -> Option<Step> {
        let task = self.wait_for_task()?;
        // Time spent on hashing does not count as waiting.
        let wait = Wait::begin();
        let (waited, done) = match task {
            HashTask::Prepare(file) => {
                let prepared = (self.prepare)(file);
                (wait.end(0).0, prepared.map(|prepared| self.enter(prepared)))
            }
            HashTask::Read { lane, range, mut buffer } => {
                let read = lane.job.read(&range, &mut buffer);
                let waited = wait.end(range.end - range.start).0;
                if waited {
                    locked(&self.state).pieces.double();
                }
                (waited, read.and_then(|()| self.deliver(&lane, range.start, buffer)))
            }
        };
        if let Err(error) = done {
            self.end(Some(error));
            return None;
        }
        Some(Step { items: 1, waited })
    }

    fn leave(&self) {
        self.task_ready.notify_one();
    }

    fn panicked(&self) {
        self.end(Some(Error::argument("a thread that hashes panicked; please report it")));
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use proptest::test_runner::RngSeed;
    use sha2::{Digest, Sha256};
    use twox_hash::XxHash3_128;

    use super::*;
    use crate::mapped_file::RequestedMode;
    use crate::mapped_file::gate::OpenAtEnd;
    use crate::mapped_file::test_file;
    use crate::os::errno::Code;

    /// Only guards against a hang.
    const MINUTES: Duration = Duration::from_secs(600);

    /// Hashes files with these contents and returns their digests by number.
    fn digests(contents: &[Vec<u8>], ends: &[Vec<u64>], sha256: bool) -> Vec<Digests> {
        let open = |content: &Vec<u8>| test_file::opened(content, RequestedMode::Auto);
        let files: Vec<_> = contents.iter().map(open).collect();
        let ends = ends.to_vec();
        let prepare = move |number: usize| {
            let (opened, span_ends) = (files[number].clone(), ends[number].clone());
            let finish: Finish<(usize, Digests)> = Box::new(move |digests| (number, digests));
            Ok(Prepared::Hash(HashRequest { len: opened.size(), opened, span_ends, sha256 }, finish))
        };
        let hashing =
            Hashing::start((0..contents.len()).collect(), Box::new(prepare), Some(3)).expect("threads");
        let mut found = vec![None; contents.len()];
        loop {
            match hashing.next(MINUTES).expect("no error") {
                Next::Ready((number, digests)) => found[number] = Some(digests),
                Next::End => break,
                Next::NotYet => panic!("a minute is long"),
            }
        }
        assert_eq!(hashing.done_bytes(), contents.iter().map(|content| content.len() as u64).sum::<u64>());
        hashing.close();
        found.into_iter().map(|digests| digests.expect("each file has its outcome")).collect()
    }

    /// Returns `len` bytes in which every four bytes hold a different number, and the hashes of the spans that end at
    /// `ends`.
    fn content_and_hashes(len: u32, ends: &[u64]) -> (Vec<u8>, Vec<u128>) {
        let numbers = 0..len / 4;
        let content: Vec<u8> =
            numbers.flat_map(|number| number.wrapping_mul(0x9e37_79b1).to_le_bytes()).collect();
        let starts = [0].into_iter().chain(ends.iter().copied());
        let spans = starts.zip(ends).map(|(start, &end)| start as usize..end as usize);
        let hashes = spans.map(|span| XxHash3_128::oneshot(&content[span])).collect();
        (content, hashes)
    }

    #[test]
    fn a_file_of_many_lanes_has_the_same_hashes_as_in_one_go() {
        let ends = vec![5, (2 << 20) + 1, 5 << 20, 6 << 20];
        let (content, expected) = content_and_hashes(6 << 20, &ends);
        assert_eq!(lanes(&ends, 6 << 20, false).len(), 3);
        let found = digests(std::slice::from_ref(&content), &[ends], false);
        assert_eq!(found[0], Digests { spans: expected, sha256: None });
    }

    /// The next piece of a lane may land after later pieces.
    #[test]
    fn pieces_that_land_in_any_order_are_hashed_in_file_order() {
        const PIECES: u64 = 4;
        let len = PIECES * PIECE_BYTES;
        let ends = vec![7, PIECE_BYTES, PIECE_BYTES + 3, len];
        let (content, expected) = content_and_hashes(len as u32, &ends);
        let orders = [[3, 2, 1, 0], [0, 1, 2, 3], [2, 0, 3, 1], [1, 3, 0, 2]];
        for order in orders {
            let (opened, gate) = test_file::gated(&content, RequestedMode::Auto);
            let span_ends = ends.clone();
            let prepare = move |_| {
                let finish: Finish<Digests> = Box::new(|digests| digests);
                let (opened, span_ends) = (opened.clone(), span_ends.clone());
                Ok(Prepared::Hash(HashRequest { len, opened, span_ends, sha256: true }, finish))
            };
            let hashing = Hashing::start(vec![0], Box::new(prepare), Some(PIECES as usize)).expect("threads");
            let _open = OpenAtEnd(&gate);
            assert_eq!(gate.wait_for(PIECES as usize)[1].offset, PIECE_BYTES);
            assert!(matches!(hashing.next(Duration::ZERO), Ok(Next::NotYet)));
            for piece in order {
                gate.release(piece * PIECE_BYTES);
            }
            let Next::Ready(found) = hashing.next(MINUTES).expect("no error") else { panic!("no outcome") };
            assert_eq!(found.spans, expected, "{order:?}");
            assert_eq!(found.sha256, Some(Sha256::digest(&content).into()), "{order:?}");
            assert_eq!(hashing.done_bytes(), len);
            assert!(matches!(hashing.next(MINUTES), Ok(Next::End)));
        }
    }

    #[test]
    fn a_failed_read_ends_the_hashing_while_other_reads_are_in_flight() {
        let len = 2 * PIECE_BYTES;
        let (opened, gate) = test_file::gated(&vec![1; len as usize], RequestedMode::Auto);
        let prepare = move |_| {
            let finish: Finish<()> = Box::new(|_| ());
            let opened = opened.clone();
            Ok(Prepared::Hash(HashRequest { len, opened, span_ends: vec![len], sha256: false }, finish))
        };
        let hashing = Hashing::start(vec![0], Box::new(prepare), Some(2)).expect("threads");
        let _open = OpenAtEnd(&gate);
        gate.wait_for(2);
        gate.fail(0, Code::STALE);
        assert!(hashing.next(MINUTES).is_err());
        assert!(matches!(hashing.next(MINUTES), Ok(Next::End)), "the error comes once");
        gate.open();
        hashing.0.wait_for_threads(MINUTES);
        assert_eq!(hashing.done_bytes(), 0, "nothing was hashed before its turn");
    }

    proptest! {
        #![proptest_config(ProptestConfig { rng_seed: RngSeed::Fixed(1), ..ProptestConfig::with_cases(24) })]
        #[test]
        fn digests_match_the_bytes(
            lens in prop::collection::vec(prop::collection::vec(prop_oneof![0..300u64, 0..1_500_000u64], 1..6), 0..5),
            sha256: bool,
        ) {
            let mut contents = Vec::new();
            let mut ends = Vec::new();
            for (number, lens) in lens.iter().enumerate() {
                let mut end = 0;
                ends.push(lens.iter().map(|len| { end += len; end }).collect::<Vec<u64>>());
                contents.push((0..end).map(|at| (at * 7 + at / 251) as u8 ^ number as u8).collect::<Vec<u8>>());
            }
            for (found, (content, ends)) in digests(&contents, &ends, sha256).iter().zip(contents.iter().zip(&ends)) {
                let mut start = 0;
                for (&span, &end) in found.spans.iter().zip(ends) {
                    prop_assert_eq!(span, XxHash3_128::oneshot(&content[start..end as usize]));
                    start = end as usize;
                }
                prop_assert_eq!(found.spans.len(), ends.len());
                let expected = sha256.then(|| Sha256::digest(content).into());
                prop_assert_eq!(found.sha256, expected);
            }
        }
    }
}

//! [`CacheFill`]: threads that read tensors into the page cache and keep no copy of them.

use std::collections::VecDeque;
use std::ops::Range;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use crate::allocate;
use crate::error::{Error, Result};
use crate::fetch::background::{Background, BackgroundWork};
use crate::fetch::crew::{Limits, Step, Wait, Work};
use crate::mapped_file::{Opened, page_cache};
use crate::os::memory::Uninit;
use crate::os::process::limits;
use crate::slicing::SlicePlan;

use crate::streaming::options::CacheUse;
use crate::streaming::pieces::{Files, read_piece};
use crate::streaming::plan::{PLAN, ReadPiece, Reads, Want, groups};

/// The available memory is checked each time this many bytes have been taken.
const LOOK_BYTES: u64 = 64 << 20;

/// Threads that read tensors into the page cache, for files whose reads go through it. Each thread reuses one buffer.
#[derive(Debug)]
pub struct CacheFill(Background<FillWork>);

/// A piece of a file that one thread reads in one go.
#[derive(Debug)]
struct FillPiece {
    file: usize,
    piece: ReadPiece,
    len: usize,
    /// Whether the file is checked after this piece.
    is_last: bool,
}

struct FillWork {
    pieces: Vec<FillPiece>,
    /// For each want: the numbers of its pieces. Neighbouring tensors share pieces.
    pieces_of: Vec<Range<usize>>,
    files: Arc<Files>,
    /// The caller's limit.
    memory_bytes: Option<u64>,
    done_bytes: AtomicU64,
    read_bytes: AtomicU64,
    state: Mutex<FillState>,
    /// Signals that nothing more will be read.
    ended: Condvar,
}

#[derive(Debug)]
struct FillState {
    is_taken: Vec<bool>,
    /// Number of pieces that no thread has taken.
    left: usize,
    /// The next piece in order. It may have been taken early.
    next: usize,
    /// Pieces to read before `next`.
    urgent: VecDeque<usize>,
    taken_bytes: u64,
    limit_bytes: u64,
    /// The limit is computed again once `taken_bytes` reaches this.
    look_at_bytes: u64,
    /// Number of threads that are reading a piece.
    reading: usize,
    /// Whether the limit has been reached.
    is_full: bool,
    failure: Option<Error>,
    is_over: bool,
}

impl FillState {
    fn has_ended(&self) -> bool {
        self.failure.is_some() || (self.reading == 0 && (self.takes_no_more() || self.left == 0))
    }

    fn takes_no_more(&self) -> bool {
        self.is_over || self.is_full
    }
}

impl std::fmt::Debug for FillWork {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter.debug_struct("FillWork").field("state", &self.state).finish_non_exhaustive()
    }
}

impl CacheFill {
    /// Starts to read. Stops after `memory_bytes` have been read or found in the cache, and never exceeds the available
    /// memory; `None` for half of the available memory.
    pub fn start(
        wants: &[Want],
        files: Arc<Files>,
        memory_bytes: Option<u64>,
        readers: Limits,
    ) -> Result<Self> {
        let mut pieces = Vec::new();
        let mut pieces_of = allocate::filled(0..0, wants.len(), PLAN)?;
        for group in groups(wants, Reads::Exact)? {
            let first = pieces.len();
            let count = group.pieces.len();
            allocate::reserve(&mut pieces, count, PLAN)?;
            pieces.extend(group.pieces.into_iter().enumerate().map(|(number, (piece, range))| FillPiece {
                file: group.file,
                piece,
                len: range.len(),
                is_last: number + 1 == count,
            }));
            for place in &group.places {
                pieces_of[place.want] = first..pieces.len();
            }
        }
        let Limits { first, most } = readers;
        let limits = Limits { first: first.min(pieces.len()), most: most.min(pieces.len()) };
        let state = FillState {
            is_taken: allocate::filled(false, pieces.len(), PLAN)?,
            left: pieces.len(),
            next: 0,
            urgent: VecDeque::new(),
            taken_bytes: 0,
            limit_bytes: 0,
            look_at_bytes: 0,
            reading: 0,
            is_full: false,
            failure: None,
            is_over: false,
        };
        let work = FillWork {
            pieces,
            pieces_of,
            files,
            memory_bytes,
            done_bytes: AtomicU64::new(0),
            read_bytes: AtomicU64::new(0),
            state: Mutex::new(state),
            ended: Condvar::new(),
        };
        Background::start("pagestream-warm", work, limits).map(Self)
    }

    /// Moves a want to the front, unless it has been read. Returns false if it will not be read.
    pub fn bring_forward(&self, want: usize) -> bool {
        let Some(pieces) = self.0.pieces_of.get(want) else { return false };
        let mut state = self.0.lock();
        let left: Vec<_> = pieces.clone().filter(|&piece| !state.is_taken[piece]).collect();
        if left.is_empty() || state.takes_no_more() {
            return left.is_empty();
        }
        state.urgent.extend(left);
        true
    }

    /// Waits at most for `patience` until nothing more will be read. Returns whether this is so.
    pub fn wait(&self, patience: Duration) -> Result<bool> {
        let deadline = Instant::now() + patience;
        let mut state = self.0.lock();
        loop {
            if let Some(error) = &state.failure {
                return Err(error.clone());
            }
            let left = deadline.saturating_duration_since(Instant::now());
            if state.has_ended() || left.is_zero() {
                return Ok(state.has_ended());
            }
            state = self.0.ended.wait_timeout(state, left).unwrap_or_else(PoisonError::into_inner).0;
        }
    }

    /// Returns whether all wants have been read or found in the cache.
    pub fn is_complete(&self) -> bool {
        let state = self.0.lock();
        state.left == 0 && state.has_ended() && state.failure.is_none()
    }

    /// Returns how many bytes of the wants have been read or found in the cache.
    pub fn done_bytes(&self) -> u64 {
        self.0.done_bytes.load(Ordering::Relaxed)
    }

    /// Returns how many bytes were not in the cache and had to be read.
    pub fn read_bytes(&self) -> u64 {
        self.0.read_bytes.load(Ordering::Relaxed)
    }

    /// Returns the bytes of all wants and of small gaps between them.
    pub fn planned_bytes(&self) -> u64 {
        self.0.pieces.iter().map(|piece| piece.len as u64).sum()
    }

    /// Stops reading. A thread that is in a read finishes it and then ends.
    pub fn stop(&self) {
        self.0.stop();
    }

    /// Stops the threads and waits for them for a limited time, because a read from dead storage may never return.
    pub fn close(&self) {
        self.0.close();
    }
}

impl FillWork {
    fn lock(&self) -> MutexGuard<'_, FillState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Takes a piece to read. Returns `None` if there will be no more.
    fn take(&self) -> Option<usize> {
        let mut state = self.lock();
        let number = loop {
            if state.takes_no_more() {
                return None;
            }
            let number = state.urgent.pop_front().unwrap_or_else(|| {
                state.next += 1;
                state.next - 1
            });
            if !*state.is_taken.get(number)? {
                break number;
            }
        };
        if state.taken_bytes >= state.look_at_bytes {
            let available_bytes = limits::available_memory_bytes();
            state.limit_bytes =
                self.memory_bytes.map_or(available_bytes / 2, |given| given.min(available_bytes));
            state.look_at_bytes += LOOK_BYTES;
        }
        state.taken_bytes += self.pieces[number].len as u64;
        if state.taken_bytes > state.limit_bytes {
            state.is_full = true;
            self.ended.notify_all();
            return None;
        }
        state.is_taken[number] = true;
        state.left -= 1;
        state.reading += 1;
        Some(number)
    }

    /// Reads a piece unless it is cached. Returns how many of its bytes were not.
    fn read(&self, piece: &FillPiece, scratch: &mut Vec<u8>) -> Result<u64> {
        let opened = (self.files)(piece.file)?;
        let missing = missing_bytes(&opened, piece);
        if missing > 0 {
            allocate::reserve(scratch, piece.len, "reading ahead into the page cache")?;
            let memory = Uninit::spare(&mut scratch.spare_capacity_mut()[..piece.len]);
            read_piece(&opened, &piece.piece, memory, CacheUse::Fill, &mut || !self.lock().is_over)?;
        }
        if piece.is_last {
            opened.verify_with_server()?;
        }
        Ok(missing)
    }
}

/// Returns how many bytes of a piece are in uncached pages.
fn missing_bytes(opened: &Opened, piece: &FillPiece) -> u64 {
    let missing = |offset: u64, len: u64| {
        page_cache::resident_pages(opened, offset, len)
            .map_or(len, |pages| pages.missing_bytes(offset, offset + len))
    };
    match &piece.piece {
        ReadPiece::Run { offset } => missing(*offset, piece.len as u64),
        ReadPiece::Part { data_offset, selection } => {
            let plan = SlicePlan::new(selection.clone());
            plan.extents().map(|extent| missing(data_offset + extent.range.offset, extent.range.len)).sum()
        }
    }
}

impl BackgroundWork for FillWork {
    fn end(&self, error: Option<Error>) {
        let mut state = self.lock();
        if !state.is_over {
            state.failure = error;
        }
        state.is_over = true;
        self.ended.notify_all();
    }
}

impl Work for FillWork {
    type Tools = Vec<u8>;

    fn step(&self, scratch: &mut Vec<u8>) -> Option<Step> {
        let piece = &self.pieces[self.take()?];
        let wait = Wait::begin();
        let read = self.read(piece, scratch);
        let waited = wait.end(piece.len as u64).0;
        match read {
            Ok(missing) => {
                self.done_bytes.fetch_add(piece.len as u64, Ordering::Relaxed);
                self.read_bytes.fetch_add(missing, Ordering::Relaxed);
            }
            Err(error) => self.end(Some(error)),
        }
        let mut state = self.lock();
        state.reading -= 1;
        if state.has_ended() {
            self.ended.notify_all();
        }
        Some(Step { items: 1, waited })
    }

    fn panicked(&self) {
        self.end(Some(Error::argument("a thread that warms a checkpoint panicked; please report it")));
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc;

    use super::*;
    use crate::mapped_file::RequestedMode;
    use crate::mapped_file::test_file;

    const LEN: u64 = 1024;
    /// Only guards against a hang.
    const MINUTES: Duration = Duration::from_secs(600);

    /// A [`CacheFill`] of `count` files whose threads wait for an answer before they open a file.
    struct HeldFill {
        fill: CacheFill,
        /// The numbers of files that the threads are about to open.
        opening: mpsc::Receiver<usize>,
        answers: mpsc::Sender<Result<()>>,
    }

    fn filling(count: usize, threads: usize) -> HeldFill {
        let opened = test_file::opened(&vec![1; LEN as usize], RequestedMode::Auto);
        let wants: Vec<_> =
            (0..count).map(|file| Want { file, offset: 0, len: LEN, selection: None }).collect();
        let ((seen, opening), (answers, answer)) = (mpsc::channel(), mpsc::channel::<Result<()>>());
        let answer = Mutex::new(answer);
        let files = Arc::new(move |number| {
            let _ = seen.send(number);
            // A test that has ended lets all threads continue.
            let said = answer.lock().unwrap_or_else(PoisonError::into_inner).recv();
            said.unwrap_or(Ok(())).map(|()| opened.clone())
        });
        let readers = Limits { first: threads, most: threads };
        let fill = CacheFill::start(&wants, files, Some(u64::MAX), readers).expect("threads");
        HeldFill { fill, opening, answers }
    }

    impl HeldFill {
        fn opens(&self) -> usize {
            self.opening.recv_timeout(MINUTES).expect("a thread opens a file")
        }

        fn answer(&self, answer: Result<()>) {
            self.answers.send(answer).expect("the threads are there");
        }
    }

    #[test]
    fn tensors_brought_forward_are_read_next() {
        const FILES: usize = 10;
        let test = filling(FILES, 1);
        assert_eq!(test.opens(), 0);
        assert!(test.fill.bring_forward(FILES - 1) && test.fill.bring_forward(4));
        assert!(test.fill.bring_forward(0), "it is being read");
        assert!(!test.fill.wait(Duration::ZERO).expect("no failure"));
        for file in [FILES - 1, 4, 1, 2, 3, 5, 6, 7, 8] {
            test.answer(Ok(()));
            assert_eq!(test.opens(), file);
        }
        assert!(!test.fill.is_complete(), "the last one is not there yet");
        test.answer(Ok(()));
        assert!(test.fill.wait(MINUTES).expect("no failure") && test.fill.is_complete());
        assert_eq!(test.fill.done_bytes(), FILES as u64 * LEN);
        assert_eq!(test.opening.try_recv().ok(), None, "each once");
    }

    #[test]
    fn a_failure_ends_the_filling_while_another_thread_reads() {
        let test = filling(10, 2);
        let mut both = [test.opens(), test.opens()];
        both.sort_unstable();
        assert_eq!(both, [0, 1]);
        test.answer(Err(Error::argument("gone")));
        assert_eq!(test.fill.wait(MINUTES), Err(Error::argument("gone")));
        test.answer(Ok(()));
        test.fill.0.wait_for_threads(MINUTES);
        assert_eq!(test.opening.try_recv().ok(), None, "nothing more is read");
        assert!(!test.fill.is_complete() && !test.fill.bring_forward(5));
        assert_eq!(test.fill.done_bytes(), LEN, "of the other thread");
    }

    #[test]
    fn after_a_stop_threads_finish_their_reads_and_begin_no_others() {
        let test = filling(10, 1);
        assert_eq!(test.opens(), 0);
        test.fill.stop();
        assert!(!test.fill.wait(Duration::ZERO).expect("no failure"), "one is being read");
        test.answer(Ok(()));
        assert!(test.fill.wait(MINUTES).expect("no failure") && !test.fill.is_complete());
        test.fill.0.wait_for_threads(MINUTES);
        assert_eq!((test.fill.done_bytes(), test.opening.try_recv().ok()), (LEN, None));
    }
}

//! Reading a selection into memory.
//!
//! By positioned reads that the kernel does not extend ([`RandomReads`]). Where they come out of the page
//! cache, the extents ahead are asked for early, page by page, so that the disk has many requests at a time.
//! Where they do not (FUSE with `direct_io`, `read` mode), or where a read is slow all the same, further
//! threads read other extents at the same time.

use std::mem::{MaybeUninit, take};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::thread::{Builder, Scope};
use std::time::{Duration, Instant};

use crate::error::{Error, Result};
use crate::mapped_file::{Opened, RandomReads};

use super::copy;
use super::plan::{Blocks, Extent, Extents, Plan};
use super::rooms::{Part, Rooms};

/// Threads that read at once, where reads are slow: at 10 ms a request 3200 requests a second.
const MAX_READERS: u64 = 32;

/// A read that takes so much longer than a copy has waited for storage.
const WAIT: Duration = Duration::from_micros(300);
/// What a copy out of the page cache takes at most, for each byte.
const COPY_NANOSECONDS_PER_BYTE: u64 = 1;

/// What is asked for ahead of the reads, at most.
const AHEAD_BYTES: u64 = 16 << 20;
const AHEAD_EXTENTS: u64 = 2048;
/// An extent brings in at least that much of the file, whatever is read of it.
const PAGE_BYTES: u64 = 4096;
/// Of each lot of extents that could be asked for so many are looked at; if all are cached none is asked for.
const LOOKED_AT: usize = 8;

/// Between two calls of [`KeepGoing`].
const LOOK_EVERY: Duration = Duration::from_millis(50);

/// Called now and then by the thread that called [`fill()`]; `false` stops.
pub type KeepGoing<'a> = dyn FnMut() -> bool + 'a;

/// Fills `out`, C-contiguous and of the result's size, with the elements that `plan` selects of a tensor, whose
/// bytes begin at `data_offset` of the file.
///
/// A file that was cut or rewritten meanwhile is an error. After one, or after a stop, the content of `out` is
/// undefined.
pub fn fill(
    opened: &Opened,
    data_offset: u64,
    plan: &Plan,
    out: &mut [MaybeUninit<u8>],
    keep_going: &mut KeepGoing<'_>,
) -> Result<()> {
    let needed = plan.selection().result_bytes();
    if needed != out.len() as u64 {
        let detail = format!("the room for the selection has {} bytes, {needed} are needed", out.len());
        return Err(Error::argument(detail));
    }
    if needed == 0 {
        return Ok(());
    }
    let reads = opened.random_reads();
    let ahead = opened.reads_from_cache().then(|| Ahead::new(plan));
    let feed = Feed { extents: plan.join(Rooms::new(plan, out)), taken: Amount::default(), ahead };
    let work = Work {
        plan,
        data_offset,
        reads: &reads,
        feed: Mutex::new(feed),
        failure: Mutex::new(None),
        is_over: AtomicBool::new(false),
        has_helpers: AtomicBool::new(false),
    };
    std::thread::scope(|scope| work.run(scope, Some(keep_going)));
    match work.failure.into_inner().unwrap_or_else(PoisonError::into_inner) {
        Some(error) => Err(error),
        None => reads.finish(),
    }
}

#[derive(Debug, Default, Clone, Copy)]
struct Amount {
    bytes: u64,
    extents: u64,
}

impl Amount {
    fn add<T>(&mut self, extent: &Extent<T>) {
        self.bytes += extent.len.max(PAGE_BYTES);
        self.extents += 1;
    }
}

/// What is still to be read.
#[derive(Debug)]
struct Feed<'p, 'a> {
    extents: Extents<Rooms<'p, 'a>>,
    taken: Amount,
    ahead: Option<Ahead<'p>>,
}

/// A second walk through the same extents, in front of the first.
#[derive(Debug)]
struct Ahead<'p> {
    extents: Extents<Blocks<'p>>,
    asked: Amount,
}

impl<'p> Ahead<'p> {
    fn new(plan: &'p Plan) -> Self {
        Self { extents: plan.extents(), asked: Amount::default() }
    }

    /// Once half of what was asked for is taken: the ranges that are to be asked for next.
    fn next(&mut self, taken: Amount, ranges: &mut Vec<(u64, u64)>) {
        let is_near = self.asked.bytes < taken.bytes + AHEAD_BYTES / 2
            && self.asked.extents < taken.extents + AHEAD_EXTENTS / 2;
        while is_near
            && self.asked.bytes < taken.bytes + AHEAD_BYTES
            && self.asked.extents < taken.extents + AHEAD_EXTENTS
        {
            let Some(extent) = self.extents.next() else { break };
            self.asked.add(&extent);
            // What is taken is being read.
            if self.asked.extents > taken.extents {
                ranges.push((extent.offset, extent.len));
            }
        }
    }
}

/// What the threads share.
struct Work<'p, 'a> {
    plan: &'p Plan,
    data_offset: u64,
    reads: &'p RandomReads<'p>,
    feed: Mutex<Feed<'p, 'a>>,
    failure: Mutex<Option<Error>>,
    is_over: AtomicBool,
    has_helpers: AtomicBool,
}

impl<'a> Work<'_, 'a> {
    /// Reads extents until there are none. `keep_going` is asked by the calling thread alone.
    fn run<'scope>(
        &'scope self,
        scope: &'scope Scope<'scope, '_>,
        mut keep_going: Option<&mut KeepGoing<'_>>,
    ) {
        let (mut scratch, mut ranges) = (Vec::new(), Vec::new());
        let mut looked = Instant::now();
        while !self.is_over.load(Ordering::Relaxed) {
            let Some(extent) = self.next(&mut ranges) else { break };
            self.fetch_ahead(&mut ranges);
            let (began, len) = (Instant::now(), extent.len);
            if let Err(error) = self.read(extent, &mut scratch) {
                self.failure().get_or_insert(error);
                self.is_over.store(true, Ordering::Relaxed);
                break;
            }
            let now = Instant::now();
            if now - began > WAIT + Duration::from_nanos(len * COPY_NANOSECONDS_PER_BYTE) {
                self.call_helpers(scope);
            }
            if let Some(keep_going) = keep_going.as_mut().filter(|_| now - looked > LOOK_EVERY) {
                if !keep_going() {
                    self.is_over.store(true, Ordering::Relaxed);
                }
                looked = Instant::now();
            }
        }
    }

    fn next(&self, ranges: &mut Vec<(u64, u64)>) -> Option<Extent<Part<'a>>> {
        let mut feed = self.feed.lock().unwrap_or_else(PoisonError::into_inner);
        let Feed { extents, taken, ahead } = &mut *feed;
        let extent = extents.next()?;
        taken.add(&extent);
        if let Some(ahead) = ahead {
            ahead.next(*taken, ranges);
        }
        Some(extent)
    }

    fn failure(&self) -> MutexGuard<'_, Option<Error>> {
        self.failure.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn fetch_ahead(&self, ranges: &mut Vec<(u64, u64)>) {
        let opened = self.reads.opened();
        let step = ranges.len().div_ceil(LOOKED_AT).max(1);
        let is_cached =
            |&(offset, len): &(u64, u64)| opened.is_resident(self.data_offset + offset, len) == Some(true);
        if !ranges.iter().step_by(step).all(is_cached) {
            for &(offset, len) in ranges.iter() {
                // Best effort: what is not fetched ahead is read when its turn comes.
                if !opened.fetch_ahead(self.data_offset + offset, len) {
                    break;
                }
            }
        }
        ranges.clear();
    }

    /// The first thread that waits for storage calls the others.
    fn call_helpers<'scope>(&'scope self, scope: &'scope Scope<'scope, '_>) {
        if self.has_helpers.swap(true, Ordering::Relaxed) {
            return;
        }
        for _ in 1..self.plan.block_count().min(MAX_READERS) {
            // Where there can be no more threads, those that there are do it all.
            let thread = Builder::new().name("pagestream-slice".into());
            if thread.spawn_scoped(scope, || self.run(scope, None)).is_err() {
                break;
            }
        }
    }

    fn read(&self, extent: Extent<Part<'a>>, scratch: &mut Vec<MaybeUninit<u8>>) -> Result<()> {
        let Extent { offset, len, first, others } = extent;
        let place = self.data_offset + offset;
        if others.is_empty() && self.plan.is_run(&first.block) {
            return self.reads.read_into(place, first.room);
        }
        let len = len as usize;
        if scratch.len() < len {
            // The old content is of no use: nothing is to be moved.
            drop(take(scratch));
            scratch.resize(len, MaybeUninit::uninit());
        }
        self.reads.read_into(place, &mut scratch[..len])?;
        for Part { block, room } in std::iter::once(first).chain(others) {
            let start = (block.offset - offset) as usize;
            let source = &scratch[start..start + block.len as usize];
            copy::gather(self.plan.block_axes(), block.count, source, room);
        }
        Ok(())
    }
}

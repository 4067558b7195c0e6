//! Reading a selection into memory.
//!
//! By positioned reads that the kernel does not extend ([`RandomReads`]). Where they come out of the page
//! cache, the extents ahead are asked for early, page by page, so that the disk has many requests at a time.
//! Where they do not (FUSE with `direct_io`, `read` mode), or where a read is slow all the same, further
//! threads read other extents at the same time. Small extents that are cached are copied out of the mapping.

use std::mem::take;
use std::ops::Range;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::thread::{Builder, Scope};
use std::time::{Duration, Instant};

use crate::error::{Error, Result};
use crate::mapped_file::{Opened, RandomReads};
use crate::os::memory::Uninit;

use super::outputs::{OutputPart, Outputs};
use super::plan::{Blocks, SliceExtent, SliceExtents, SlicePlan};
use super::scatter;

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
/// Of a lot of extents that are far apart so many are looked at; if all are cached none is asked for.
const LOOKED_AT: usize = 8;

/// SliceExtents of at most this much are copied out of the mapping, if all of a lot are cached: a system call costs more
/// than the page fault, which maps 16 pages at a time.
const MAX_MAPPED_BYTES: u64 = 16 << 10;
/// How much of the next of them the processor is told of: after that it has seen the direction.
const PREFETCHED_BYTES: u64 = 1 << 10;
/// Where extents are so near to each other that there are no more bytes than this for each, the kernel is asked
/// which pages are cached for a whole lot at once.
const LOOKED_THROUGH_BYTES: u64 = 128 << 10;

/// Of extents that are copied out of the mapping, so many between two looks at the clock.
const CACHED_BETWEEN_LOOKS: u32 = 256;

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
    plan: &SlicePlan,
    out: Uninit<'_>,
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
    let extents = plan.join(Outputs::new(plan, out));
    let feed = Feed { extents, taken: Amount::default(), ahead, cached: 0..0 };
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
    fn add<T>(&mut self, extent: &SliceExtent<T>) {
        self.bytes += extent.len.max(PAGE_BYTES);
        self.extents += 1;
    }
}

/// What is still to be read.
#[derive(Debug)]
struct Feed<'p, 'a> {
    extents: SliceExtents<Outputs<'p, 'a>>,
    taken: Amount,
    ahead: Option<Ahead<'p>>,
    /// The numbers of extents, the first being 1, that were found in the page cache.
    cached: Range<u64>,
}

/// A second walk through the same extents, in front of the first.
#[derive(Debug)]
struct Ahead<'p> {
    extents: SliceExtents<Blocks<'p>>,
    asked: Amount,
}

impl<'p> Ahead<'p> {
    fn new(plan: &'p SlicePlan) -> Self {
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
    plan: &'p SlicePlan,
    data_offset: u64,
    reads: &'p RandomReads<'p>,
    feed: Mutex<Feed<'p, 'a>>,
    failure: Mutex<Option<Error>>,
    is_over: AtomicBool,
    has_helpers: AtomicBool,
}

/// What each thread has for itself.
struct Tools {
    scratch: Vec<u8>,
    /// Of the extents to come.
    ranges: Vec<(u64, u64)>,
    guarded: bool,
    /// Whether the present extent was found in the page cache.
    is_cached: bool,
}

impl<'p, 'a> Work<'p, 'a> {
    /// Reads extents until there are none. `keep_going` is asked by the calling thread alone.
    fn run<'scope>(
        &'scope self,
        scope: &'scope Scope<'scope, '_>,
        mut keep_going: Option<&mut KeepGoing<'_>>,
    ) {
        let mut tools = Tools {
            scratch: Vec::new(),
            ranges: Vec::new(),
            guarded: self.reads.is_guarded(),
            is_cached: false,
        };
        let (mut looked, mut cached_in_a_row) = (Instant::now(), 0);
        while !self.is_over.load(Ordering::Relaxed) {
            let Some(extent) = self.next(&mut tools) else { break };
            let (began, len) = ((!tools.is_cached).then(Instant::now), extent.len);
            if let Err(error) = self.read(extent, &mut tools) {
                self.failure().get_or_insert(error);
                self.is_over.store(true, Ordering::Relaxed);
                break;
            }
            // To look at the clock takes as long as to copy a small extent.
            cached_in_a_row = if tools.is_cached { cached_in_a_row + 1 } else { 0 };
            if cached_in_a_row % CACHED_BETWEEN_LOOKS != 0 {
                continue;
            }
            let now = Instant::now();
            if began.is_some_and(|began| {
                now - began > WAIT + Duration::from_nanos(len * COPY_NANOSECONDS_PER_BYTE)
            }) {
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

    fn feed(&self) -> MutexGuard<'_, Feed<'p, 'a>> {
        self.feed.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Takes the next extent, and sees to those that come later.
    fn next(&self, tools: &mut Tools) -> Option<SliceExtent<OutputPart<'a>>> {
        let mut feed = self.feed();
        let Feed { extents, taken, ahead, cached } = &mut *feed;
        let extent = extents.next()?;
        taken.add(&extent);
        tools.is_cached = cached.contains(&taken.extents);
        if let Some(block) = extents.upcoming().filter(|_| tools.is_cached) {
            self.reads.prefetch_cached(self.data_offset + block.offset, block.len.min(PREFETCHED_BYTES));
        }
        let Some(ahead) = ahead else { return Some(extent) };
        ahead.next(*taken, &mut tools.ranges);
        if !tools.ranges.is_empty() {
            let stop = ahead.asked.extents + 1;
            let lot = stop - tools.ranges.len() as u64..stop;
            drop(feed);
            if self.fetch_ahead(tools) {
                let cached = &mut self.feed().cached;
                *cached = if cached.end == lot.start { cached.start..lot.end } else { lot };
            }
            tools.ranges.clear();
        }
        Some(extent)
    }

    fn failure(&self) -> MutexGuard<'_, Option<Error>> {
        self.failure.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Asks for what of a lot is not cached. Says whether all of it can be copied out of the mapping instead,
    /// without waiting for storage.
    fn fetch_ahead(&self, tools: &mut Tools) -> bool {
        let opened = self.reads.opened();
        let ([(start, _), ..], [.., (last, len)]) = (&tools.ranges[..], &tools.ranges[..]) else {
            return false;
        };
        let (start, reach, lot) = (self.data_offset + start, last + len - start, tools.ranges.len());
        let is_dense = reach / lot as u64 <= LOOKED_THROUGH_BYTES.max(*len);
        let pages = is_dense.then(|| opened.resident_pages(start, reach)).flatten();
        if let Some(pages) = pages {
            let is_small = tools.ranges.iter().all(|&(_, len)| len <= MAX_MAPPED_BYTES);
            tools.ranges.retain(|&(offset, len)| !pages.contain(self.data_offset + offset, len));
            if tools.ranges.is_empty() {
                return is_small && tools.guarded;
            }
        } else {
            let is_cached = |&(offset, len): &(u64, u64)| {
                opened.is_resident(self.data_offset + offset, len) == Some(true)
            };
            if tools.ranges.iter().step_by(lot.div_ceil(LOOKED_AT)).all(is_cached) {
                return false;
            }
        }
        for &(offset, len) in &tools.ranges {
            // Best effort: what is not fetched ahead is read when its turn comes.
            if !opened.fetch_ahead(self.data_offset + offset, len) {
                break;
            }
        }
        false
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

    fn read(&self, extent: SliceExtent<OutputPart<'a>>, tools: &mut Tools) -> Result<()> {
        let SliceExtent { offset, len, first, others } = extent;
        let read_into = |room: Uninit<'_>| {
            let place = self.data_offset + offset;
            if tools.is_cached {
                self.reads.copy_cached(place, room, tools.guarded)
            } else {
                self.reads.read_into(place, room)
            }
        };
        if others.is_empty() && self.plan.is_run(&first.block) {
            return read_into(first.room);
        }
        let (len, scratch) = (len as usize, &mut tools.scratch);
        if scratch.len() < len {
            // The old content is of no use: nothing is to be moved.
            drop(take(scratch));
            scratch.resize(len, 0);
        }
        read_into(Uninit::of(&mut scratch[..len]))?;
        for OutputPart { block, room } in std::iter::once(first).chain(others) {
            let start = (block.offset - offset) as usize;
            let source = &scratch[start..start + block.len as usize];
            scatter::scatter(self.plan.block_axes(), block.count, source, room);
        }
        Ok(())
    }
}

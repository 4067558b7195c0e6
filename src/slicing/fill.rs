//! Reads a selection into memory.
//!
//! It uses positioned reads that the kernel does not extend ([`Opened::exact_reader`]). If they come from the page
//! cache, the next extents are requested early, so that the disk has many requests at a time. If they do not (FUSE with
//! `direct_io`, `read` mode), or if a read is slow anyway, additional threads read other extents at the same time.
//! Small cached extents are copied from the mapping.

use std::mem::take;
use std::ops::Range;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError, TryLockError};

use crate::error::{Error, Result};
use crate::fetch::ahead::Ahead;
use crate::fetch::budget::Budget;
use crate::fetch::crew::{Crew, KeepGoing, Limits, Step, Wait, Work};
use crate::fetch::ranges::{ByteRange, Merge, MergedRange};
use crate::mapped_file::{FileReader, Opened, can_copy_from_mappings};
use crate::os::memory::{Uninit, zeroed};

use super::outputs::{OutputPart, Outputs};
use super::plan::{Blocks, SlicePlan};
use super::scatter;

/// Number of reading threads while storage is slow: at 10 ms per request, 3200 requests a second.
pub const MAX_READERS: u64 = 32;
/// Maximum number of bytes requested ahead of the reads.
const AHEAD_BYTES: u64 = 16 << 20;
/// Minimum size of an extent when counting against [`AHEAD_BYTES`]: it stands for a request and its pages, even if few
/// bytes are read.
const LEAST_EXTENT_BYTES: u64 = 8 << 10;
/// Extents up to this size are copied from the mapping if their whole batch is cached. A system call would cost more
/// than the page fault, which maps 16 pages at a time.
const MAX_MAPPED_BYTES: u64 = 16 << 10;
/// Bytes of the next extent to prefetch. After them, the processor has detected the direction.
const PREFETCHED_BYTES: u64 = 1 << 10;
/// Bytes and extents of a step while storage is calm.
const STEP_BYTES: u64 = 256 << 10;
const STEP_EXTENTS: usize = 64;

/// Fills `out`, C-contiguous and of the result's size, with the elements that `plan` selects of a tensor, whose bytes
/// begin at `data_offset` of the file. While storage is slow, up to `max_readers` threads read, including the caller.
///
/// It does not check for a rewrite of the file. The caller does so once all parts of a result are complete, with
/// [`Opened::verify_with_server`]. After an error or a stop the content of `out` is undefined.
pub fn fill(
    opened: &Opened,
    data_offset: u64,
    plan: &SlicePlan,
    out: Uninit<'_>,
    max_readers: u64,
    keep_going: &mut KeepGoing<'_>,
) -> Result<()> {
    let needed = plan.selection.result_bytes;
    if needed != out.len() as u64 {
        let detail = format!("the memory for the selection has {} bytes, not {needed}", out.len());
        return Err(Error::argument(detail));
    }
    if needed == 0 {
        return Ok(());
    }
    let reads = opened.exact_reader();
    let crew = Crew::new(Limits { first: 1, most: plan.block_count().min(max_readers) as usize });
    let work = SliceWork {
        plan,
        data_offset,
        reads: &reads,
        crew: &crew,
        queue: Mutex::new(Queue {
            extents: plan.join(Outputs::new(plan, out)),
            taken: 0,
            credit: 0,
            cached: 0..0,
        }),
        ahead: opened.reads_from_cache().then(|| Mutex::new(SliceAhead::new(plan))),
        failure: Mutex::new(None),
        is_over: AtomicBool::new(false),
    };
    let stop = || work.is_over.store(true, Ordering::Relaxed);
    crew.run("pagestream-slice", &work, keep_going, stop);
    match work.failure.into_inner().unwrap_or_else(PoisonError::into_inner) {
        Some(error) => Err(error),
        None => Ok(()),
    }
}

/// The unclaimed extents.
#[derive(Debug)]
struct Queue<'p, 'a> {
    extents: Merge<Outputs<'p, 'a>>,
    taken: u64,
    /// Claimed bytes that have not been given back to the budget.
    credit: u64,
    /// The numbers of extents, counted from 1, that are known to be in the page cache.
    cached: Range<u64>,
}

/// A second walk through the same extents, ahead of the first.
#[derive(Debug)]
struct SliceAhead<'p> {
    extents: Merge<Blocks<'p>>,
    asked: u64,
    budget: Budget,
    ahead: Ahead,
    lot: Vec<ByteRange>,
}

impl<'p> SliceAhead<'p> {
    fn new(plan: &'p SlicePlan) -> Self {
        let budget = Budget::new(AHEAD_BYTES, AHEAD_BYTES);
        Self { extents: plan.extents(), asked: 0, budget, ahead: Ahead::default(), lot: Vec::new() }
    }

    /// Sets `lot` to the next extents to request, or to none before half of the budget is used.
    fn next_lot(&mut self, data_offset: u64, taken: u64) {
        self.lot.clear();
        if !self.budget.is_half_used() {
            return;
        }
        while self.budget.has_room() {
            let Some(MergedRange { range, .. }) = self.extents.next() else { break };
            self.asked += 1;
            self.budget.take(range.len.max(LEAST_EXTENT_BYTES));
            // Extents that were taken are already being read.
            if self.asked > taken {
                self.lot.push(ByteRange { offset: data_offset + range.offset, ..range });
            }
        }
    }
}

/// The state that the threads share.
struct SliceWork<'p, 'a> {
    plan: &'p SlicePlan,
    data_offset: u64,
    reads: &'p FileReader<'p>,
    crew: &'p Crew,
    queue: Mutex<Queue<'p, 'a>>,
    ahead: Option<Mutex<SliceAhead<'p>>>,
    failure: Mutex<Option<Error>>,
    is_over: AtomicBool,
}

/// The tools of a thread.
#[derive(Default)]
struct SliceTools<'a> {
    scratch: Vec<u8>,
    /// The extents of the step.
    extents: Vec<MergedRange<OutputPart<'a>>>,
    guarded: Option<bool>,
}

impl<'a> Work for SliceWork<'_, 'a> {
    type Tools = SliceTools<'a>;

    fn step(&self, tools: &mut SliceTools<'a>) -> Option<Step> {
        if self.is_over.load(Ordering::Relaxed) {
            return None;
        }
        let is_cached = self.take_extents(tools);
        let items = tools.extents.len();
        if items == 0 {
            return None;
        }
        self.look_ahead(tools);
        let wait = (!is_cached && self.crew.can_grow()).then(Wait::begin);
        let (mut extents, mut bytes, mut read) = (take(&mut tools.extents), 0, Ok(()));
        let mut rest = extents.drain(..).peekable();
        while let (Some(extent), true) = (rest.next(), read.is_ok()) {
            if let Some(next) = rest.peek().filter(|_| is_cached).map(|next| next.range) {
                self.reads.opened.prefetch(self.data_offset + next.offset, next.len.min(PREFETCHED_BYTES));
            }
            bytes += extent.range.len;
            read = self.read(extent, tools, is_cached);
        }
        drop(rest);
        tools.extents = extents;
        if let Err(error) = read {
            self.failure.lock().unwrap_or_else(PoisonError::into_inner).get_or_insert(error);
            self.is_over.store(true, Ordering::Relaxed);
            return None;
        }
        let waited = wait.is_some_and(|wait| wait.end(bytes).0);
        Some(Step { items, waited })
    }
}

impl<'p, 'a> SliceWork<'p, 'a> {
    fn queue(&self) -> MutexGuard<'_, Queue<'p, 'a>> {
        self.queue.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Takes the extents of a step: one while storage is slow. Returns whether all of them are known to be cached, so
    /// that they can be copied from the mapping.
    fn take_extents(&self, tools: &mut SliceTools<'a>) -> bool {
        let mut queue = self.queue();
        let is_cached = queue.cached.contains(&(queue.taken + 1));
        let most = if self.crew.is_slow() && !is_cached { 1 } else { STEP_EXTENTS };
        let mut bytes = 0;
        while tools.extents.len() < most && bytes < STEP_BYTES {
            let Some(extent) = queue.extents.next() else { break };
            bytes += extent.range.len;
            queue.credit += extent.range.len.max(LEAST_EXTENT_BYTES);
            tools.extents.push(extent);
        }
        queue.taken += tools.extents.len() as u64;
        is_cached && queue.cached.contains(&queue.taken)
    }

    /// Requests later extents, unless another thread is doing so.
    fn look_ahead(&self, tools: &mut SliceTools<'a>) {
        let mut guard = match self.ahead.as_ref().map(Mutex::try_lock) {
            Some(Ok(guard)) => guard,
            Some(Err(TryLockError::Poisoned(guard))) => guard.into_inner(),
            None | Some(Err(TryLockError::WouldBlock)) => return,
        };
        let ahead = &mut *guard;
        let (taken, credit) = {
            let mut queue = self.queue();
            (queue.taken, take(&mut queue.credit))
        };
        ahead.budget.give_back(credit);
        ahead.next_lot(self.data_offset, taken);
        let Some(first) =
            (ahead.asked + 1).checked_sub(ahead.lot.len() as u64).filter(|_| !ahead.lot.is_empty())
        else {
            return;
        };
        // Best effort: an extent that was not requested is read in its turn.
        let lot = ahead.ahead.ask(&ahead.lot, |_| Ok(self.reads.opened));
        let is_small = ahead.lot.iter().all(|range| range.len <= MAX_MAPPED_BYTES);
        let guarded = *tools.guarded.get_or_insert_with(can_copy_from_mappings);
        if is_small && guarded && lot.is_ok_and(|lot| lot.is_cached) {
            let cached = &mut self.queue().cached;
            let start = if cached.end == first { cached.start } else { first };
            *cached = start..ahead.asked + 1;
        }
    }

    fn read(
        &self,
        extent: MergedRange<OutputPart<'a>>,
        tools: &mut SliceTools<'a>,
        is_cached: bool,
    ) -> Result<()> {
        let MergedRange { range, first, others } = extent;
        let guarded = is_cached && *tools.guarded.get_or_insert_with(can_copy_from_mappings);
        let read_into = |memory: Uninit<'_>| {
            let place = self.data_offset + range.offset;
            if guarded {
                self.reads.opened.copy_into(place, memory, guarded)
            } else {
                self.reads.read_into(place, memory)
            }
        };
        if others.is_empty() && self.plan.is_run(&first.block) {
            return read_into(first.memory);
        }
        let (len, scratch) = (range.len as usize, &mut tools.scratch);
        if scratch.len() < len {
            // Drop the old content first, so that it is not copied.
            drop(take(scratch));
            *scratch = zeroed(len, "a part of a slice")?;
        }
        read_into(Uninit::of(&mut scratch[..len]))?;
        for OutputPart { block, memory } in std::iter::once(first).chain(others) {
            let start = (block.offset - range.offset) as usize;
            let source = &scratch[start..start + block.len as usize];
            scatter::scatter(self.plan.block_axes(), block.count, source, memory);
        }
        Ok(())
    }
}

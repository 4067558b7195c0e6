//! The batches between planner and consumer. Only [`Ring`] creates, claims, finishes and takes slots. It has no lock
//! and no thread: `threads.rs` locks it and wakes threads according to its [`News`].

use std::collections::VecDeque;
use std::mem::take;
use std::sync::Arc;

use crate::error::{Error, Result};
use crate::fetch::budget::Budget;
use crate::fetch::buffers::{Lease, Pool};
use crate::fetch::ranges::{ByteRange, FileId};
use crate::os::memory::parts::Whole;

use super::layout::{BatchLayout, RowChunk};
use super::plan::BatchPlan;

/// A batch whose pages were requested from storage.
#[derive(Debug, Clone)]
pub(super) struct Planned {
    pub plan: Arc<BatchPlan>,
    /// Ranges that can be dropped from memory once the batch is finished.
    pub behind: Arc<Vec<ByteRange>>,
}

/// The part of a batch's work that one thread does at a time.
#[derive(Debug)]
pub(super) enum SlotWork {
    Fill(RowChunk),
    /// Ask the server whether the file is still the file that was opened. Each file is a separate piece of work,
    /// because each needs a request.
    Check(FileId),
}

/// Work claimed by one thread.
#[derive(Debug)]
pub(super) struct Claim {
    pub number: u64,
    pub plan: Arc<BatchPlan>,
    pub work: SlotWork,
}

/// The outcome of a claim.
#[derive(Debug, Default)]
pub(super) struct Filled {
    /// For each row, its number and the positions where documents begin inside it, in tokens from its first token.
    pub documents: Vec<(usize, Vec<u64>)>,
    /// Whether the thread had to wait for storage.
    pub waited: bool,
    /// Files that were read without a mapping. Once the batch is filled, their servers are asked about them.
    pub unmapped: Vec<FileId>,
}

#[derive(Debug)]
enum SlotState {
    /// The unclaimed chunks, in reverse order.
    Filling(Vec<RowChunk>),
    /// The unclaimed files.
    Checking(Vec<FileId>),
    /// *Finished*, or *failed*.
    Done(Result<Lease>),
}

#[derive(Debug)]
struct BatchSlot {
    planned: Planned,
    state: SlotState,
    /// The buffer, until the batch is finished.
    whole: Option<Whole>,
    /// Number of unfinished pieces in the current state.
    open: usize,
    filled: Filled,
}

/// A batch that the consumer has taken.
#[derive(Debug)]
pub(super) struct Taken {
    pub plan: Arc<BatchPlan>,
    pub buffer: Result<Lease>,
    pub documents: Vec<(usize, Vec<u64>)>,
}

/// The consumer's view of the first batch.
#[derive(Debug)]
pub(super) enum Front {
    Batch(Taken),
    /// Not ready yet. It may carry work that the consumer can do meanwhile.
    Pending(Option<Claim>),
    /// The consumer has taken all batches.
    End,
    Failed(Error),
}

/// Changes since the last [`Ring::take_news`]. They show which sleeping threads can proceed.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
pub(super) struct News {
    /// Number of gatherers that would find work.
    pub work: usize,
    /// The first batch is finished, or no more will come.
    pub is_ready: bool,
    /// There is space for enough plans.
    pub has_room: bool,
}

#[derive(Debug)]
pub(super) struct Ring {
    layout: BatchLayout,
    pool: Pool,
    planned: VecDeque<Planned>,
    slots: VecDeque<BatchSlot>,
    /// Number of the first slot, equal to the number of batches taken so far.
    first: u64,
    /// The outcome of planning, once it has ended.
    end: Option<Result<()>>,
    pub is_closed: bool,
    /// Budget of planned batches without a slot.
    lookahead: Budget,
    /// Budget of slots.
    space: Budget,
    adapts: bool,
    is_warm: bool,
    news: News,
}

impl Ring {
    pub fn new(layout: BatchLayout, pool: Pool, lookahead: Budget, space: Budget, adapts: bool) -> Self {
        Self {
            layout,
            pool,
            planned: VecDeque::new(),
            slots: VecDeque::new(),
            first: 0,
            end: None,
            is_closed: false,
            lookahead,
            space,
            adapts,
            is_warm: false,
            news: News::default(),
        }
    }

    /// Returns the limits on batches requested ahead and on slots, and the number of buffers allocated so far.
    pub fn lengths(&self) -> [u64; 3] {
        [self.lookahead.limit(), self.space.limit(), self.pool.made()]
    }

    pub fn take_news(&mut self) -> News {
        take(&mut self.news)
    }

    // --- the planner ---

    pub fn has_room_for_plans(&self) -> bool {
        self.lookahead.has_room()
    }

    /// Returns whether a sleeping planner should wake. With a cold cache it wakes at once. With a warm cache it wakes
    /// only when half of the lookahead is used up, and therefore less often.
    pub fn wants_plans(&self) -> bool {
        if self.is_warm { self.lookahead.is_half_used() } else { self.lookahead.has_room() }
    }

    /// Adds a batch as *planned*.
    pub fn plan(&mut self, planned: Planned) {
        self.planned.push_back(planned);
        self.lookahead.take(1);
        self.news.work += usize::from(self.space.has_room());
    }

    /// Records whether the planner finds everything in the page cache. Once it does, both budgets start again from
    /// their first limits, because unneeded buffers fall out of the processor's caches.
    pub fn set_warm(&mut self, is_warm: bool) {
        if is_warm && !self.is_warm && self.adapts {
            self.lookahead.start_anew();
            self.space.start_anew();
        }
        self.is_warm = is_warm;
        self.news.has_room = true;
    }

    /// Marks the end of planning, with its outcome.
    pub fn end(&mut self, end: Result<()>) {
        self.end = Some(end);
        self.news.is_ready = true;
    }

    // --- gatherers ---

    /// Claims the next work: from the first batch with unclaimed work, otherwise from a new slot if there is space.
    pub fn claim(&mut self, is_slow: bool) -> Option<Claim> {
        if self.is_closed {
            return None;
        }
        loop {
            let open = self.slots.iter_mut().enumerate().find_map(|(index, slot)| {
                let work = match &mut slot.state {
                    SlotState::Filling(chunks) => chunks.pop().map(SlotWork::Fill),
                    SlotState::Checking(files) => files.pop().map(SlotWork::Check),
                    SlotState::Done(_) => None,
                }?;
                Some(Claim { number: self.first + index as u64, plan: slot.planned.plan.clone(), work })
            });
            if open.is_some() || !self.make_slot(is_slow) {
                return open;
            }
        }
    }

    /// Moves the first *planned* batch to *filling*.
    fn make_slot(&mut self, is_slow: bool) -> bool {
        if !self.space.has_room() {
            return false;
        }
        let Some(planned) = self.planned.pop_front() else { return false };
        self.lookahead.give_back(1);
        self.space.take(1);
        self.news.has_room = true;
        let rows = planned.plan.rows.len();
        let made = self.pool.take().and_then(|block| self.layout.chunks(block, rows, is_slow));
        let (whole, state) = match made {
            Ok((whole, chunks)) => (Some(whole), SlotState::Filling(chunks.into_iter().rev().collect())),
            Err(error) => (None, SlotState::Done(Err(error))),
        };
        let open = if let SlotState::Filling(chunks) = &state { chunks.len() } else { 0 };
        self.news.work += open.saturating_sub(1);
        let mut slot = BatchSlot { planned, state, whole, open, filled: Filled::default() };
        if open == 0 {
            // A rank may have no row in a short last batch.
            slot.finish(&self.pool);
            self.news.is_ready = true;
        }
        self.slots.push_back(slot);
        true
    }

    /// Returns a claim, so that another thread can take it.
    pub fn give_back(&mut self, claim: Claim) {
        let index = claim.number.checked_sub(self.first);
        let Some(slot) = index.and_then(|index| self.slots.get_mut(index as usize)) else { return };
        match (&mut slot.state, claim.work) {
            (SlotState::Filling(chunks), SlotWork::Fill(chunk)) => chunks.push(chunk),
            (SlotState::Checking(files), SlotWork::Check(file)) => files.push(file),
            _ => return,
        }
        self.news.work += 1;
    }

    /// Makes another gatherer look for work, because a woken gatherer is leaving.
    pub fn pass_on(&mut self) {
        self.news.work += 1;
    }

    /// Records the outcome of a claim. After the last claim of a batch, it returns the ranges that can be dropped from
    /// memory.
    ///
    /// A batch fails with its first error. The outcomes of its later claims are ignored.
    pub fn finish(&mut self, number: u64, outcome: Result<Filled>) -> Option<Arc<Vec<ByteRange>>> {
        let Self { slots, pool, news, first, .. } = self;
        let index = number.checked_sub(*first)? as usize;
        let slot = slots.get_mut(index)?;
        slot.open = slot.open.checked_sub(1)?;
        match (&slot.state, outcome) {
            (SlotState::Done(_), _) => return None,
            (_, Ok(filled)) => slot.filled.add(filled),
            (_, Err(error)) => slot.state = SlotState::Done(Err(error)),
        }
        if slot.open == 0 && !slot.begin_checks() {
            slot.finish(pool);
        }
        match &slot.state {
            SlotState::Filling(_) => None,
            SlotState::Checking(files) => {
                // The thread that finished takes one of them itself.
                news.work += files.len().saturating_sub(1);
                None
            }
            SlotState::Done(_) => {
                news.is_ready |= index == 0;
                Some(slot.planned.behind.clone())
            }
        }
    }

    // --- the consumer ---

    /// Takes the first batch, if it is finished or failed. `stalled` tells whether the consumer waited for it. If it
    /// did, and the batch in turn waited for storage, both budgets double.
    pub fn take(&mut self, stalled: bool) -> Front {
        match (&self.end, self.slots.is_empty() && self.planned.is_empty()) {
            (Some(Err(error)), is_empty) if is_empty || self.is_closed => {
                return Front::Failed(error.clone());
            }
            _ if self.is_closed => return Front::Failed(Error::argument("the loader is closed")),
            (Some(Ok(())), true) => return Front::End,
            _ => {}
        }
        if !self.front_is_done() {
            return Front::Pending(None);
        }
        let Some(BatchSlot { planned, state: SlotState::Done(buffer), filled, .. }) = self.slots.pop_front()
        else {
            return Front::Pending(None);
        };
        self.first += 1;
        self.space.give_back(1);
        if stalled && filled.waited && !self.is_warm && self.adapts {
            self.lookahead.double();
            self.space.double();
        }
        self.news.work += usize::from(!self.planned.is_empty());
        self.news.is_ready |= self.front_is_done();
        self.news.has_room = true;
        Front::Batch(Taken { plan: planned.plan, buffer, documents: filled.documents })
    }

    /// Same as [`Self::take`]. If no batch is ready and the consumer may help, it gets work.
    pub fn take_or_claim(&mut self, stalled: bool, may_help: bool) -> Front {
        match self.take(stalled) {
            Front::Pending(None) if may_help => Front::Pending(self.claim(false)),
            front => front,
        }
    }

    fn front_is_done(&self) -> bool {
        self.slots.front().is_some_and(|slot| matches!(slot.state, SlotState::Done(_)))
    }

    /// Returns whether [`Self::take`] would return something other than [`Front::Pending`].
    pub fn is_ready(&self) -> bool {
        let is_over = self.end.is_some() && self.slots.is_empty() && self.planned.is_empty();
        self.is_closed || is_over || self.front_is_done()
    }

    /// Stops all threads at their next check. If `error` is given, the consumer receives it from then on. Returns
    /// whether this is the first call.
    pub fn close(&mut self, error: Option<Error>) -> bool {
        let was_open = !std::mem::replace(&mut self.is_closed, true);
        if let Some(error) = error {
            self.end = Some(Err(error));
        }
        self.news = News { work: usize::MAX, is_ready: true, has_room: true };
        was_open
    }

    /// Drops all batches.
    pub fn clear(&mut self) {
        self.slots.clear();
        self.planned.clear();
    }
}

impl BatchSlot {
    /// Moves the batch from *filling* to *checking*, if files were read without a mapping.
    fn begin_checks(&mut self) -> bool {
        if !matches!(self.state, SlotState::Filling(_)) {
            return false;
        }
        let mut files = take(&mut self.filled.unmapped);
        files.sort_unstable();
        files.dedup();
        self.open = files.len();
        if self.open > 0 {
            self.state = SlotState::Checking(files);
        }
        self.open > 0
    }

    /// Moves the batch from *filling* or *checking* to *finished*.
    fn finish(&mut self, pool: &Pool) {
        if let (SlotState::Filling(_) | SlotState::Checking(_), Some(whole)) =
            (&self.state, self.whole.take())
        {
            let block = whole.join().map_err(|_| Error::argument("a part of the batch is still in use"));
            self.state = SlotState::Done(block.map(|block| pool.lease(block)));
        }
    }
}

impl Filled {
    fn add(&mut self, more: Self) {
        self.waited |= more.waited;
        self.documents.extend(more.documents);
        self.unmapped.extend(more.unmapped);
    }
}

#[cfg(test)]
mod tests;

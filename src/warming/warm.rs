//! [`Warming`]: the tensors of a checkpoint, read before the program asks for them.

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use crate::error::{Error, Result};
use crate::fetch::crew::Limits;
use crate::fetch::next::Next;
use crate::os::process::fork;
use crate::slicing::Selection;

use super::cache_fill::CacheFill;
use crate::streaming::engine::{Landed, Stream};
use crate::streaming::options::StreamOptions;
use crate::streaming::pieces::Files;
use crate::streaming::plan::Want;

/// Reads tensors into the page cache if the file's reads go through it, and otherwise into owned memory.
#[derive(Debug)]
pub struct Warming {
    /// Every tensor that is not empty, by file and offset.
    places: HashMap<(usize, u64), WarmPlace>,
    cache: CacheFill,
    memory: Stream,
    /// For each want of `memory`: whether a caller has its tensor or waits for it.
    is_claimed: Vec<AtomicBool>,
    is_cancelled: AtomicBool,
    process: u64,
}

#[derive(Debug)]
struct WarmPlace {
    /// The wanted part; `None` for the whole tensor.
    part: Option<Selection>,
    is_cached: bool,
    /// The number of the want in `cache` or `memory`.
    want: usize,
}

/// Where the program finds the bytes of its request, now or soon.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Warmed {
    InCache,
    /// In memory, claimed by the caller under this number.
    InMemory(usize),
}

/// The state of a warming.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum WarmState {
    Reading,
    /// Everything has been read.
    Done,
    /// The limit has been reached.
    Full,
    Cancelled,
    Failed,
}

impl WarmState {
    pub const fn word(self) -> &'static str {
        match self {
            Self::Reading => "reading",
            Self::Done => "done",
            Self::Full => "full",
            Self::Cancelled => "cancelled",
            Self::Failed => "failed",
        }
    }
}

impl Warming {
    /// Starts to read. `is_cached` returns whether reads of a file go through the page cache. `memory_bytes` limits the
    /// page cache and the owned memory, each on its own; `None` for the defaults of [`CacheFill`] and of a stream.
    pub fn start(
        wants: Vec<Want>,
        is_cached: impl Fn(usize) -> bool,
        files: Arc<Files>,
        memory_bytes: Option<u64>,
        readers: Limits,
    ) -> Result<Self> {
        let (mut cached, mut others) = (Vec::new(), Vec::new());
        let mut places = HashMap::with_capacity(wants.len());
        for want in wants {
            let is_cached = is_cached(want.file);
            let way = if is_cached { &mut cached } else { &mut others };
            let place = WarmPlace { part: want.part().cloned(), is_cached, want: way.len() };
            if want.len > 0 {
                places.insert((want.file, want.offset), place);
            }
            way.push(want);
        }
        let cache = CacheFill::start(&cached, files.clone(), memory_bytes, readers)?;
        let mut options = StreamOptions { readers, ..StreamOptions::default() };
        options.memory_bytes = memory_bytes.unwrap_or(options.memory_bytes);
        options.readers = options.readers_of(&others);
        let memory = Stream::start(&others, Box::new(move |number| files(number)), None, options, None)?;
        Ok(Self {
            places,
            cache,
            memory,
            is_claimed: others.iter().map(|_| AtomicBool::new(false)).collect(),
            is_cancelled: AtomicBool::new(false),
            process: fork::generation(),
        })
    }

    fn find(&self, file: usize, offset: u64, part: Option<&Selection>) -> Option<&WarmPlace> {
        let is_here = self.process == fork::generation();
        self.places.get(&(file, offset)).filter(|place| is_here && place.part.as_ref() == part)
    }

    /// Claims a want of `memory`. Returns `None` if another caller has it.
    fn claim(&self, want: usize) -> Option<usize> {
        (!self.is_claimed[want].swap(true, Ordering::Relaxed)).then_some(want)
    }

    /// Moves a requested tensor, or a part of it, to the front. Returns `None` if the warming neither has its bytes nor
    /// will read them.
    pub fn ask(&self, file: usize, offset: u64, part: Option<&Selection>) -> Option<Warmed> {
        let &WarmPlace { is_cached, want, .. } = self.find(file, offset, part)?;
        if is_cached {
            return self.cache.bring_forward(want).then_some(Warmed::InCache);
        }
        let want = self.claim(want)?;
        // If memory is short, the caller reads the tensor itself.
        let is_live = self.memory.bring_forward(want).unwrap_or(false);
        is_live.then_some(Warmed::InMemory(want))
    }

    /// Leaves a tensor, or a part of it, to a stream that reads by itself. If its bytes are in memory or being read,
    /// claims it instead and returns its number.
    pub fn claim_or_leave(&self, file: usize, offset: u64, part: Option<&Selection>) -> Option<usize> {
        let place = self.find(file, offset, part).filter(|place| !place.is_cached)?;
        let want = self.claim(place.want)?;
        self.memory.leave_out(want).then_some(want)
    }

    /// Takes a claimed tensor. Waits for it at most for `patience`. Returns the end after a failure: the caller then
    /// learns the cause when it reads the tensor's file.
    pub fn take(&self, want: usize, patience: Duration) -> Next<Landed> {
        self.memory.take(want, patience).unwrap_or(Next::End)
    }

    /// Returns the change to a file that ended the warming, if one did.
    pub fn change(&self) -> Option<Error> {
        self.memory.failure().filter(Error::is_change)
    }

    /// Returns a claim that the caller no longer needs.
    pub fn release(&self, want: usize) {
        self.is_claimed[want].store(false, Ordering::Relaxed);
    }

    /// Waits at most for `patience` until nothing more is read unless the program takes a tensor. Returns whether this
    /// is so.
    pub fn wait(&self, patience: Duration) -> Result<bool> {
        if self.process != fork::generation() {
            return Err(Error::argument("the warming belongs to the process that this one was forked from"));
        }
        let deadline = Instant::now() + patience;
        if !self.cache.wait(patience)? {
            return Ok(false);
        }
        let is_settled = self.memory.settle(deadline.saturating_duration_since(Instant::now()));
        self.memory.failure().map_or(Ok(is_settled), Err)
    }

    pub fn state(&self) -> WarmState {
        match self.wait(Duration::ZERO) {
            _ if self.process != fork::generation() => WarmState::Cancelled,
            Err(_) => WarmState::Failed,
            Ok(_) if self.is_cancelled.load(Ordering::Relaxed) => WarmState::Cancelled,
            Ok(false) => WarmState::Reading,
            Ok(true) if self.cache.is_complete() && self.memory.is_all_begun() => WarmState::Done,
            Ok(true) => WarmState::Full,
        }
    }

    /// Returns how many bytes have been read.
    pub fn read_bytes(&self) -> u64 {
        self.cache.read_bytes() + self.memory.read_bytes()
    }

    /// Returns how many bytes have been read or found in the page cache.
    pub fn done_bytes(&self) -> u64 {
        self.cache.done_bytes() + self.memory.read_bytes()
    }

    pub fn planned_bytes(&self) -> u64 {
        self.cache.planned_bytes() + self.memory.planned_bytes()
    }

    /// Stops reading. Tensors in memory can still be taken.
    pub fn cancel(&self) {
        self.is_cancelled.store(true, Ordering::Relaxed);
        self.cache.stop();
        self.memory.stop();
    }

    /// Ends the warming and frees its memory.
    fn end(&self) {
        self.cancel();
        self.cache.close();
        self.memory.close();
    }
}

/// The warming of a checkpoint. A checkpoint has at most one at a time.
#[derive(Debug, Default)]
pub struct WarmingSlot {
    warming: Mutex<Option<Arc<Warming>>>,
    is_set: AtomicBool,
    /// Whether any warming so far has filled the page cache.
    has_filled_cache: AtomicBool,
}

impl WarmingSlot {
    pub fn warming(&self) -> Option<Arc<Warming>> {
        // Avoids the lock: nearly all requests come while there is no warming.
        let is_set = self.is_set.load(Ordering::Relaxed);
        is_set.then(|| fork::with_lock(&self.warming, |warming| warming.clone())).flatten()
    }

    pub fn has_filled_cache(&self) -> bool {
        self.has_filled_cache.load(Ordering::Relaxed)
    }

    /// Ends the current warming, and sets another one.
    pub fn replace(&self, warming: Option<Arc<Warming>>) {
        if warming.as_ref().is_some_and(|warming| warming.cache.planned_bytes() > 0) {
            self.has_filled_cache.store(true, Ordering::Relaxed);
        }
        let before = fork::with_lock(&self.warming, |slot| {
            self.is_set.store(warming.is_some(), Ordering::Relaxed);
            std::mem::replace(slot, warming)
        });
        if let Some(before) = before {
            before.end();
        }
    }
}

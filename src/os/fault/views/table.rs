//! Mappings whose memory is handed out: NumPy and torch touch it by instructions of their own, which cannot be
//! led to a landing. When such a page cannot be read, memory of zeros takes its place (`replace.rs`), so that the
//! instruction goes on; the mapping counts as damaged from then on, for good. Whoever hands out more of it looks at
//! that first, and a hook lets the program know.

use std::collections::BTreeMap;
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::ptr;
use std::sync::atomic::{AtomicBool, AtomicPtr, AtomicUsize, Ordering, fence};
use std::sync::{Mutex, MutexGuard, PoisonError};

use crate::os::memory::page_bytes;
use crate::os::process::fork;

/// Slots are made this many at a time, and never go: a handler may be reading them.
const CHUNK_SLOTS: usize = 256;
/// How often a page that can be read after all is tried again before it is replaced nevertheless.
const MOST_RETRIES: usize = 1 << 16;
const NO_DAMAGE: usize = usize::MAX;

/// Null, or a leaked chunk; so is the next of each.
static CHUNKS: AtomicPtr<Chunk> = AtomicPtr::new(ptr::null_mut());
static HOOK: AtomicPtr<()> = AtomicPtr::new(ptr::null_mut());
static MAPPED: Mutex<Mapped> =
    Mutex::new(Mapped { paths: BTreeMap::new(), untold: Vec::new(), free: Vec::new() });

/// What messages need to know; the handler does not touch it.
#[derive(Debug)]
pub struct Mapped {
    /// By address.
    paths: BTreeMap<usize, PathBuf>,
    /// Damage to mappings that are gone, and that [`untold_damage`] has yet to give out.
    untold: Vec<Damage>,
    free: Vec<&'static Slot>,
}

struct Chunk {
    slots: [Slot; CHUNK_SLOTS],
    next: Option<&'static Chunk>,
}

/// One mapping. `state` is 4n while the slot is free, 4n+1 while it is written, 4n+2 while it is in use; what was
/// read of it is true if it was in use before and `state` is the same after.
#[derive(Debug)]
struct Slot {
    state: AtomicUsize,
    address: AtomicUsize,
    /// In bytes, as the file's; the last page may be less than whole.
    len: AtomicUsize,
    writable: AtomicBool,
    /// Where the first page lies that could not be read, from the mapping's start.
    damage: AtomicUsize,
    /// Where the last one ends.
    damage_end: AtomicUsize,
    /// From this address on, up to the mapping's end, all was replaced.
    tail: AtomicUsize,
    /// Whether [`untold_damage`] gave it out.
    told: AtomicBool,
    retries: AtomicUsize,
}

/// A mapping's place among those that are guarded.
#[derive(Debug)]
pub struct Guard {
    slot: &'static Slot,
}

/// What could not be read of a mapping when it was used.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Damage {
    pub path: PathBuf,
    /// From the file's start.
    pub offset: u64,
    pub bytes: u64,
    /// The length of the mapping, which the file had.
    pub mapped_bytes: u64,
    /// Whether all is gone from there on.
    pub to_end: bool,
}

/// Makes a chunk that the handler can see, and gives out a slot and the others.
fn more_slots() -> (&'static Slot, &'static [Slot]) {
    let slots = [const { Slot::new() }; CHUNK_SLOTS];
    let next = chunks().next();
    let chunk: &'static Chunk = Box::leak(Box::new(Chunk { slots, next }));
    CHUNKS.store(ptr::from_ref(chunk).cast_mut(), Ordering::Release);
    let [first, others @ ..] = &chunk.slots;
    (first, others)
}

fn chunks() -> impl Iterator<Item = &'static Chunk> {
    // SAFETY: null, or a leaked box to which nobody has a mutable reference.
    let first = unsafe { CHUNKS.load(Ordering::Acquire).as_ref() };
    std::iter::successors(first, |chunk| chunk.next)
}

fn slots() -> impl Iterator<Item = &'static Slot> {
    chunks().flat_map(|chunk| &chunk.slots)
}

impl Slot {
    const fn new() -> Self {
        Self {
            state: AtomicUsize::new(0),
            address: AtomicUsize::new(0),
            len: AtomicUsize::new(0),
            writable: AtomicBool::new(false),
            damage: AtomicUsize::new(NO_DAMAGE),
            damage_end: AtomicUsize::new(0),
            tail: AtomicUsize::new(0),
            told: AtomicBool::new(false),
            retries: AtomicUsize::new(0),
        }
    }

    /// Of a free slot, which nobody else claims.
    fn claim(&self, address: usize, len: usize, writable: bool) {
        self.state.fetch_add(1, Ordering::Acquire);
        fence(Ordering::Release);
        self.address.store(address, Ordering::Relaxed);
        self.len.store(len, Ordering::Relaxed);
        self.writable.store(writable, Ordering::Relaxed);
        self.damage.store(NO_DAMAGE, Ordering::Relaxed);
        self.damage_end.store(0, Ordering::Relaxed);
        self.tail.store(usize::MAX, Ordering::Relaxed);
        self.told.store(false, Ordering::Relaxed);
        self.retries.store(0, Ordering::Relaxed);
        self.state.fetch_add(1, Ordering::Release);
    }

    fn release(&self) {
        self.state.fetch_add(2, Ordering::Release);
    }

    /// Address, length and whether it is writable, if it is in use.
    fn mapping(&self) -> Option<(usize, usize, bool)> {
        let before = self.state.load(Ordering::Acquire);
        if before % 4 != 2 {
            return None;
        }
        let found = (
            self.address.load(Ordering::Relaxed),
            self.len.load(Ordering::Relaxed),
            self.writable.load(Ordering::Relaxed),
        );
        fence(Ordering::Acquire);
        (self.state.load(Ordering::Relaxed) == before).then_some(found)
    }

    fn is_damaged(&self) -> bool {
        self.damage.load(Ordering::Acquire) != NO_DAMAGE
    }

    /// Whether it is the first.
    fn note_damage(&self, offset: usize, end: usize) -> bool {
        self.damage_end.fetch_max(end, Ordering::Relaxed);
        self.damage.fetch_min(offset, Ordering::AcqRel) == NO_DAMAGE
    }

    fn damage_of(&self, mapped: &Mapped) -> Option<Damage> {
        let (address, len, _) = self.mapping()?;
        let offset = self.damage.load(Ordering::Acquire);
        let path = mapped.paths.get(&address)?.clone();
        let end = self.damage_end.load(Ordering::Relaxed).min(len);
        (offset != NO_DAMAGE).then_some(Damage {
            path,
            offset: offset as u64,
            bytes: end.saturating_sub(offset) as u64,
            mapped_bytes: len as u64,
            to_end: self.tail.load(Ordering::Relaxed) <= address + offset,
        })
    }
}

impl Guard {
    /// Of `len` bytes of the file at `path`, mapped at `address`.
    pub fn new(address: *const u8, len: usize, writable: bool, path: &Path) -> Self {
        fork::watch();
        page_bytes(); // asked of the system once, and not first in the handler
        let mut mapped = mapped();
        let slot = mapped.free.pop().unwrap_or_else(|| {
            let (slot, others) = more_slots();
            mapped.free.extend(others.iter().rev());
            slot
        });
        mapped.paths.insert(address.addr(), path.into());
        slot.claim(address.addr(), len, writable);
        Self { slot }
    }

    /// To be called before the mapping goes: its addresses may hold something else then.
    pub fn end(&self) {
        let mut mapped = mapped();
        // Of an array that was made, used and dropped in one expression.
        if self.is_damaged() && !self.slot.told.swap(true, Ordering::Relaxed) {
            let damage = self.slot.damage_of(&mapped);
            mapped.untold.extend(damage);
        }
        mapped.paths.remove(&self.slot.address.load(Ordering::Relaxed));
        self.slot.release();
        mapped.free.push(self.slot);
    }

    pub fn is_damaged(&self) -> bool {
        self.slot.is_damaged()
    }

    pub fn damage(&self) -> Option<Damage> {
        if self.is_damaged() { self.slot.damage_of(&mapped()) } else { None }
    }
}

/// Never held for long, and by no thread when one forks.
pub fn mapped() -> MutexGuard<'static, Mapped> {
    MAPPED.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Damage that was not given out yet.
pub fn untold_damage() -> Vec<Damage> {
    let mut mapped = mapped();
    let mut untold = std::mem::take(&mut mapped.untold);
    // None of them goes meanwhile: that takes the lock.
    let damaged = slots().filter(|slot| slot.mapping().is_some() && slot.is_damaged());
    let news = damaged.filter(|slot| !slot.told.swap(true, Ordering::Relaxed));
    untold.extend(news.filter_map(|slot| slot.damage_of(&mapped)));
    untold
}

/// What the handler calls when a mapping is damaged for the first time; it must be async-signal-safe.
pub fn set_hook(hook: extern "C" fn()) {
    HOOK.store(hook as *mut (), Ordering::Release);
}

/// A mapping in use, found by an address in it.
#[derive(Debug, Clone)]
pub(super) struct Found {
    slot: &'static Slot,
    /// Whole pages.
    pub pages: Range<usize>,
    pub writable: bool,
}

/// The mapping in which an address lies. For the handler: reads atomics, no more.
pub(super) fn find(address: usize) -> Option<Found> {
    slots().find_map(|slot| {
        let (start, len, writable) = slot.mapping()?;
        let end = start.checked_add(len)?.checked_next_multiple_of(page_bytes())?;
        (start..end).contains(&address).then_some(Found { slot, pages: start..end, writable })
    })
}

impl Found {
    /// Whether an access that failed may be tried again as it is.
    pub fn may_retry(&self) -> bool {
        self.slot.retries.fetch_add(1, Ordering::Relaxed) < MOST_RETRIES
    }

    /// From where on all was replaced.
    pub fn tail(&self) -> usize {
        self.slot.tail.load(Ordering::Relaxed).min(self.pages.end)
    }

    pub fn set_tail(&self, start: usize) {
        self.slot.tail.fetch_min(start, Ordering::Relaxed);
    }

    /// Whether it is the first time.
    pub fn mark_damaged(&self, range: &Range<usize>) -> bool {
        let start = self.pages.start;
        self.slot.note_damage(range.start - start, range.end - start)
    }
}

/// Lets the program know. For the handler.
pub(super) fn call_hook() {
    let hook = HOOK.load(Ordering::Acquire);
    if !hook.is_null() {
        // SAFETY: `set_hook` stores nothing but such functions.
        let hook = unsafe { std::mem::transmute::<*mut (), extern "C" fn()>(hook) };
        hook();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_slot_is_told_apart_from_what_it_was() {
        let slot = Slot::new();
        assert_eq!(slot.mapping(), None);
        slot.claim(1 << 20, 8192, true);
        assert_eq!(slot.mapping(), Some((1 << 20, 8192, true)));
        assert!(slot.note_damage(4096, 8192) && !slot.note_damage(0, 4096));
        assert_eq!(slot.damage.load(Ordering::Relaxed), 0);
        slot.release();
        assert_eq!(slot.mapping(), None);
        slot.claim(1 << 21, 4096, false);
        assert!(!slot.is_damaged());
        assert_eq!(slot.mapping(), Some((1 << 21, 4096, false)));
    }

    #[test]
    fn mappings_beyond_the_first_chunk_have_slots_and_give_them_back() {
        let path = Path::new("slots");
        let bytes = vec![0_u8; 3 * CHUNK_SLOTS];
        let address = |index: usize| bytes.as_ptr().wrapping_add(index);
        let guards: Vec<_> =
            (0..bytes.len()).map(|index| Guard::new(address(index), 1, false, path)).collect();
        let ours = |slot: &&Slot| {
            slot.mapping().is_some_and(|(start, ..)| bytes.as_ptr_range().contains(&(start as *const u8)))
        };
        assert_eq!(slots().filter(ours).count(), bytes.len());
        let chunks_before = chunks().count();
        guards.iter().for_each(Guard::end);
        assert_eq!(slots().filter(ours).count(), 0);
        assert!(bytes.iter().all(|byte| !mapped().paths.contains_key(&ptr::from_ref(byte).addr())));
        let again: Vec<_> =
            (0..bytes.len()).map(|index| Guard::new(address(index), 1, false, path)).collect();
        assert_eq!(chunks().count(), chunks_before);
        again.iter().for_each(Guard::end);
    }
}

//! The table of guarded mappings, which the handler reads. `mod.rs` explains its layout.

use std::collections::BTreeMap;
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::ptr;
use std::sync::atomic::{AtomicBool, AtomicPtr, AtomicU32, AtomicUsize, Ordering, fence};
use std::sync::{Mutex, MutexGuard, OnceLock, PoisonError};

use crate::error::{Error, ReadCause, Result};
use crate::os::memory::page_bytes;

/// Maximum number of accesses retried because the page became readable. After that, the page is replaced anyway.
const MOST_RETRIES: usize = 1 << 16;
const NO_DAMAGE: usize = usize::MAX;

/// The newest slot, leaked, or null. Slots are never freed, because a handler may be reading them.
static SLOTS: AtomicPtr<GuardSlot> = AtomicPtr::new(ptr::null_mut());
static HOOK: OnceLock<extern "C" fn()> = OnceLock::new();
/// Whether this process is a forked child that has not called the hook yet.
static IS_NEW_CHILD: AtomicBool = AtomicBool::new(false);
/// Whether the process survives faults in mappings that we handed out.
pub(in crate::os::fault) static IS_GUARDING: AtomicBool = AtomicBool::new(true);

static GUARDED: Mutex<Guarded> =
    Mutex::new(Guarded { paths: BTreeMap::new(), untold: Vec::new(), free: Vec::new() });

/// Facts about guarded mappings that messages need. The handler does not access them.
#[derive(Debug)]
pub struct Guarded {
    /// Paths by address.
    paths: BTreeMap<usize, PathBuf>,
    /// Errors of removed mappings that [`untold_damage`] has not returned yet.
    untold: Vec<Error>,
    free: Vec<&'static GuardSlot>,
}

/// One mapping.
#[derive(Debug, Default)]
struct GuardSlot {
    next: Option<&'static GuardSlot>,
    /// The sequence lock.
    state: AtomicUsize,
    address: AtomicUsize,
    /// Length in bytes, equal to the file's length; the last page may be partial.
    len: AtomicUsize,
    writable: AtomicBool,
    /// Offset of the first unreadable page.
    damage: AtomicUsize,
    /// Offset of the end of the last unreadable page.
    damage_end: AtomicUsize,
    /// Address from which the handler replaces all pages up to the mapping's end.
    tail: AtomicUsize,
    /// Whether [`untold_damage`] has returned the damage.
    told: AtomicBool,
    retries: AtomicUsize,
    /// Number of failed accesses to a file that was not truncated.
    failures: AtomicU32,
}

/// A mapping's entry in the table.
#[derive(Debug)]
pub struct Guard {
    slot: &'static GuardSlot,
}

/// Creates a slot that the handler can see. The caller holds the lock of the table.
fn new_slot() -> &'static GuardSlot {
    let next = slots().next();
    let slot: &'static GuardSlot = Box::leak(Box::new(GuardSlot { next, ..GuardSlot::default() }));
    SLOTS.store(ptr::from_ref(slot).cast_mut(), Ordering::Release);
    slot
}

fn slots() -> impl Iterator<Item = &'static GuardSlot> {
    // SAFETY: null, or a leaked box to which no mutable reference exists.
    let newest = unsafe { SLOTS.load(Ordering::Acquire).as_ref() };
    std::iter::successors(newest, |slot| slot.next)
}

impl GuardSlot {
    /// Fills a free slot. The caller holds the lock of the table.
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
        self.failures.store(0, Ordering::Relaxed);
        self.state.fetch_add(1, Ordering::Release);
    }

    fn release(&self) {
        self.state.fetch_add(2, Ordering::Release);
    }

    /// Returns address, length and writability, if the slot is in use.
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

    /// Records an unreadable range. Returns whether it is the mapping's first.
    fn note_damage(&self, offset: usize, end: usize) -> bool {
        self.damage_end.fetch_max(end, Ordering::Relaxed);
        self.damage.fetch_min(offset, Ordering::AcqRel) == NO_DAMAGE
    }

    /// Returns the error of a damaged mapping. It uses only recorded facts: by now the file may be closed, and its path
    /// may lead elsewhere.
    fn damage_of(&self, guarded: &Guarded) -> Option<Error> {
        let (address, len, _) = self.mapping()?;
        let offset = self.damage.load(Ordering::Acquire);
        let path = guarded.paths.get(&address)?.clone();
        let end = self.damage_end.load(Ordering::Relaxed).min(len);
        let to_end = self.tail.load(Ordering::Relaxed) <= address + offset;
        (offset != NO_DAMAGE).then_some(Error::MappedRead {
            path,
            offset: offset as u64,
            length: end.saturating_sub(offset) as u64,
            cause: ReadCause::Damaged { size_at_open: len as u64, to_end },
        })
    }
}

impl Guard {
    /// Registers `len` bytes of the file at `path`, mapped at `address`.
    pub fn new(address: *const u8, len: usize, writable: bool, path: &Path) -> Self {
        page_bytes(); // Asks the system now, so that the handler does not have to.
        let mut guarded = lock();
        let slot = guarded.free.pop().unwrap_or_else(new_slot);
        guarded.paths.insert(address.addr(), path.into());
        slot.claim(address.addr(), len, writable);
        Self { slot }
    }

    /// Removes the mapping. Call it before unmapping, because other memory may then use the same addresses.
    pub fn end(&self) {
        let mut guarded = lock();
        // A single expression may create, use and drop an array, so keep its damage for later.
        if self.is_damaged() && !self.slot.told.swap(true, Ordering::Relaxed) {
            let damage = self.slot.damage_of(&guarded);
            guarded.untold.extend(damage);
        }
        guarded.paths.remove(&self.slot.address.load(Ordering::Relaxed));
        self.slot.release();
        guarded.free.push(self.slot);
    }

    pub fn is_damaged(&self) -> bool {
        self.slot.is_damaged()
    }

    /// Returns an error for a damaged mapping.
    pub fn check(&self) -> Result<()> {
        let damage = if self.is_damaged() { self.slot.damage_of(&lock()) } else { None };
        damage.map_or(Ok(()), Err)
    }
}

/// Locks the table. Callers hold the lock only briefly, because `fork` waits for it.
pub(in crate::os) fn lock() -> MutexGuard<'static, Guarded> {
    GUARDED.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Returns the damage of all mappings, each once.
pub fn untold_damage() -> Vec<Error> {
    let mut guarded = lock();
    let mut untold = std::mem::take(&mut guarded.untold);
    // No mapping can disappear meanwhile, because removal takes the lock.
    let damaged = slots().filter(|slot| slot.mapping().is_some() && slot.is_damaged());
    let news = damaged.filter(|slot| !slot.told.swap(true, Ordering::Relaxed));
    untold.extend(news.filter_map(|slot| slot.damage_of(&guarded)));
    untold
}

/// Sets, for good, the function that the handler calls when a mapping is damaged for the first time. A forked child
/// also calls it once, in its first call that reads or hands out memory. It must be async-signal-safe.
pub fn set_hook(hook: extern "C" fn()) {
    HOOK.get_or_init(|| hook);
}

/// A mapping in use that the handler found by an address inside it.
#[derive(Debug, Clone)]
pub(super) struct FaultingMapping {
    slot: &'static GuardSlot,
    /// Whole pages.
    pub pages: Range<usize>,
    pub writable: bool,
}

/// Returns the mapping that contains an address. It only reads atomics.
pub(super) fn find(address: usize) -> Option<FaultingMapping> {
    slots().find_map(|slot| {
        let (start, len, writable) = slot.mapping()?;
        let end = start.checked_add(len)?.checked_next_multiple_of(page_bytes())?;
        (start..end).contains(&address).then_some(FaultingMapping { slot, pages: start..end, writable })
    })
}

/// Calls `tell` with the path of the read-only mapping that contains an address. Does nothing if there is no such
/// mapping, or while another thread holds the lock of the table.
pub(in crate::os::fault) fn with_path_of_read_only(address: usize, tell: impl FnOnce(&Path)) {
    let Some(mapping) = find(address).filter(|mapping| !mapping.writable) else { return };
    let Ok(guarded) = GUARDED.try_lock() else { return };
    if let Some(path) = guarded.paths.get(&mapping.pages.start) {
        tell(path);
    }
}

impl FaultingMapping {
    /// Returns whether a failed access may be retried unchanged.
    pub fn may_retry(&self) -> bool {
        self.slot.retries.fetch_add(1, Ordering::Relaxed) < MOST_RETRIES
    }

    /// Counts a failed access, and returns the number of earlier ones.
    pub fn count_failure(&self) -> u32 {
        self.slot.failures.fetch_add(1, Ordering::Relaxed)
    }

    /// Returns the address from which the handler replaces all pages up to the mapping's end.
    pub fn tail(&self) -> usize {
        self.slot.tail.load(Ordering::Relaxed).min(self.pages.end)
    }

    pub fn set_tail(&self, start: usize) {
        self.slot.tail.fetch_min(start, Ordering::Relaxed);
    }

    /// Marks a range as damaged, and returns whether it is the mapping's first.
    pub fn mark_damaged(&self, range: &Range<usize>) -> bool {
        let start = self.pages.start;
        self.slot.note_damage(range.start - start, range.end - start)
    }
}

/// Calls the hook.
pub(super) fn call_hook() {
    if let Some(hook) = HOOK.get() {
        hook();
    }
}

/// Makes the next [`call_hook_in_child`] call the hook. For a child that was just forked.
pub(in crate::os::fault) fn forked() {
    IS_NEW_CHILD.store(true, Ordering::Relaxed);
}

/// Calls the hook once in a forked child, which may have inherited unreported damage.
pub(in crate::os::fault) fn call_hook_in_child() {
    if IS_NEW_CHILD.load(Ordering::Relaxed) && IS_NEW_CHILD.swap(false, Ordering::Relaxed) {
        call_hook();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_reused_slot_differs_from_its_former_state() {
        let slot = GuardSlot::default();
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
    fn mappings_return_their_slots() {
        let path = Path::new("slots");
        let bytes = vec![0_u8; 1000];
        let address = |index: usize| bytes.as_ptr().wrapping_add(index);
        let guards: Vec<_> =
            (0..bytes.len()).map(|index| Guard::new(address(index), 1, false, path)).collect();
        let ours = |slot: &&GuardSlot| {
            slot.mapping().is_some_and(|(start, ..)| bytes.as_ptr_range().contains(&(start as *const u8)))
        };
        assert_eq!(slots().filter(ours).count(), bytes.len());
        let slots_before = slots().count();
        guards.iter().for_each(Guard::end);
        assert_eq!(slots().filter(ours).count(), 0);
        assert!(bytes.iter().all(|byte| !lock().paths.contains_key(&ptr::from_ref(byte).addr())));
        let again: Vec<_> =
            (0..bytes.len()).map(|index| Guard::new(address(index), 1, false, path)).collect();
        // Other tests may also need slots.
        assert!(slots().count() < slots_before + bytes.len());
        again.iter().for_each(Guard::end);
    }
}

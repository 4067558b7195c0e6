//! Mappings whose memory is handed out: NumPy and torch touch it by instructions of their own, which cannot be
//! led to a landing. When such a page cannot be read, memory of zeros takes its place, with the protection of
//! what it replaces, so that the instruction goes on; the mapping counts as damaged from then on, for good.
//! Whoever hands out more of it looks at that first, and a hook lets the program know.
//!
//! Where the file was cut, all from the page that failed to the mapping's end is replaced at once: page by page
//! would take a signal each, and end at the limit of mappings a process may have (vm.max_map_count). After an
//! I/O error only the pages around are, and of these none that is in memory.

use std::collections::BTreeMap;
use std::ffi::c_int;
use std::path::{Path, PathBuf};
use std::ptr;
use std::sync::atomic::{AtomicBool, AtomicPtr, AtomicUsize, Ordering, fence};
use std::sync::{Mutex, MutexGuard, PoisonError};

use crate::os;

/// Slots are made this many at a time, and never go: a handler may be reading them.
const CHUNK_SLOTS: usize = 256;
/// What is replaced at most after an I/O error.
const BLOCK_BYTES: usize = 64 << 10;
/// How often a page that can be read after all is tried again before it is replaced nevertheless.
const MOST_RETRIES: usize = 1 << 16;
const NO_DAMAGE: usize = usize::MAX;

static FIRST: Chunk = Chunk::new();
static HOOK: AtomicPtr<()> = AtomicPtr::new(ptr::null_mut());
/// By address. For messages; the handler does not touch it.
static PATHS: Mutex<Paths> = Mutex::new(Paths(BTreeMap::new()));

/// Which file is mapped where.
#[derive(Debug)]
pub struct Paths(BTreeMap<usize, PathBuf>);

struct Chunk {
    slots: [Slot; CHUNK_SLOTS],
    /// Null, or a leaked chunk.
    next: AtomicPtr<Chunk>,
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
    damage_bytes: AtomicUsize,
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
}

impl Chunk {
    const fn new() -> Self {
        Self { slots: [const { Slot::new() }; CHUNK_SLOTS], next: AtomicPtr::new(ptr::null_mut()) }
    }

    /// The next one, leaked, so that it can be read at any time.
    fn next(&self) -> Option<&'static Self> {
        // SAFETY: null, or a leaked box that nobody takes back.
        unsafe { self.next.load(Ordering::Acquire).as_ref() }
    }

    fn make_next(&self) -> &'static Self {
        let fresh = Box::into_raw(Box::new(Self::new()));
        match self.next.compare_exchange(ptr::null_mut(), fresh, Ordering::AcqRel, Ordering::Acquire) {
            // SAFETY: leaked just now.
            Ok(_) => unsafe { &*fresh },
            Err(theirs) => {
                // SAFETY: it came from a box, and nobody else has seen it.
                drop(unsafe { Box::from_raw(fresh) });
                // SAFETY: not null, so a leaked box that nobody takes back.
                unsafe { &*theirs }
            }
        }
    }
}

fn chunks() -> impl Iterator<Item = &'static Chunk> {
    std::iter::successors(Some(&FIRST), |chunk| chunk.next())
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
            damage_bytes: AtomicUsize::new(0),
            told: AtomicBool::new(false),
            retries: AtomicUsize::new(0),
        }
    }

    fn claim(&self, address: usize, len: usize, writable: bool) -> bool {
        let state = self.state.load(Ordering::Relaxed);
        let is_free = state.is_multiple_of(4);
        if !is_free
            || self.state.compare_exchange(state, state + 1, Ordering::Acquire, Ordering::Relaxed).is_err()
        {
            return false;
        }
        fence(Ordering::Release);
        self.address.store(address, Ordering::Relaxed);
        self.len.store(len, Ordering::Relaxed);
        self.writable.store(writable, Ordering::Relaxed);
        self.damage.store(NO_DAMAGE, Ordering::Relaxed);
        self.told.store(false, Ordering::Relaxed);
        self.retries.store(0, Ordering::Relaxed);
        self.state.store(state + 2, Ordering::Release);
        true
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

    fn note_damage(&self, offset: usize, bytes: usize) -> bool {
        let first = !self.is_damaged();
        if first {
            self.damage_bytes.store(bytes, Ordering::Relaxed);
            self.damage.store(offset, Ordering::Release);
        }
        first
    }

    fn damage_of(&self, paths: &Paths) -> Option<Damage> {
        let (address, len, _) = self.mapping()?;
        let offset = self.damage.load(Ordering::Acquire);
        let path = paths.0.get(&address)?.clone();
        let bytes = self.damage_bytes.load(Ordering::Relaxed);
        (offset != NO_DAMAGE).then_some(Damage {
            path,
            offset: offset as u64,
            bytes: bytes as u64,
            mapped_bytes: len as u64,
        })
    }
}

impl Guard {
    /// Of `len` bytes of the file at `path`, mapped at `address`.
    pub fn new(address: *const u8, len: usize, writable: bool, path: &Path) -> Self {
        os::fork::watch();
        paths().0.insert(address.addr(), path.into());
        loop {
            let claimed = slots().find(|slot| slot.claim(address.addr(), len, writable));
            if let Some(slot) = claimed {
                return Self { slot };
            }
            if let Some(last) = chunks().last() {
                last.make_next();
            }
        }
    }

    /// To be called before the mapping goes: its addresses may hold something else then.
    pub fn end(&self) {
        paths().0.remove(&self.slot.address.load(Ordering::Relaxed));
        self.slot.release();
    }

    pub fn is_damaged(&self) -> bool {
        self.slot.is_damaged()
    }

    pub fn damage(&self) -> Option<Damage> {
        if self.is_damaged() { self.slot.damage_of(&paths()) } else { None }
    }
}

/// Never held for long, and by no thread when one forks.
pub fn paths() -> MutexGuard<'static, Paths> {
    PATHS.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Damage that was not given out yet.
pub fn untold_damage() -> Option<Damage> {
    let paths = paths();
    slots()
        .filter(|slot| slot.mapping().is_some() && slot.is_damaged())
        .find(|slot| !slot.told.swap(true, Ordering::Relaxed))
        .and_then(|slot| slot.damage_of(&paths))
}

/// What the handler calls when a mapping is damaged for the first time; it must be async-signal-safe.
pub fn set_hook(hook: extern "C" fn()) {
    HOOK.store(hook as *mut (), Ordering::Release);
}

/// In the handler: puts zeros where `address` lies, if that belongs to a guarded mapping. False if the fault is
/// not ours, or cannot be helped.
pub(super) fn replace(address: usize) -> bool {
    let page = os::page_bytes();
    let found = slots().find_map(|slot| {
        let (start, len, writable) = slot.mapping()?;
        let whole = len.checked_next_multiple_of(page)?;
        (start..start + whole).contains(&address).then_some((slot, start, whole, writable))
    });
    let Some((slot, start, len, writable)) = found else { return false };
    let first = address / page * page;
    // Another thread was here before, or the storage is back.
    if is_readable(first) && slot.retries.fetch_add(1, Ordering::Relaxed) < MOST_RETRIES {
        return true;
    }
    let end = start + len;
    let range = if is_readable(end - page) { absent_around(first, start, end) } else { first..end };
    if !map_zeros(range.start, range.len(), writable) {
        return false;
    }
    if slot.note_damage(range.start - start, range.len()) {
        call_hook();
    }
    true
}

fn call_hook() {
    let hook = HOOK.load(Ordering::Acquire);
    if !hook.is_null() {
        // SAFETY: `set_hook` stores nothing but such functions.
        let hook = unsafe { std::mem::transmute::<*mut (), extern "C" fn()>(hook) };
        hook();
    }
}

/// Whether the kernel can read a page. rt_sigprocmask(2) copies its set from there before it finds the question
/// senseless; where it cannot, it says EFAULT and no signal is raised. It blocks as a fault would.
fn is_readable(page: usize) -> bool {
    const NO_SUCH_QUESTION: c_int = -1;
    const SET_BYTES: usize = 8;
    let set: *const u8 = ptr::with_exposed_provenance(page);
    // SAFETY: the kernel checks the address, and with that question it changes nothing.
    let status = unsafe {
        libc::syscall(
            libc::SYS_rt_sigprocmask,
            NO_SUCH_QUESTION,
            set,
            ptr::null_mut::<libc::sigset_t>(),
            SET_BYTES,
        )
    };
    // This reads errno, and no more.
    status == 0 || std::io::Error::last_os_error().raw_os_error() != Some(libc::EFAULT)
}

/// The pages beside `first`, and in its block, that are not in memory. Others may hold what a user has written.
fn absent_around(first: usize, start: usize, end: usize) -> std::ops::Range<usize> {
    const MOST_PAGES: usize = BLOCK_BYTES / 4096;
    let page = os::page_bytes();
    let block = BLOCK_BYTES.max(page);
    let low = (first / block * block).max(start);
    let high = (first / block * block + block).min(end);
    let mut present = [1_u8; MOST_PAGES];
    // SAFETY: the range lies in a mapping that the faulting instruction keeps, and `present` has a byte a page.
    let status = unsafe {
        libc::mincore(ptr::with_exposed_provenance_mut(low), high - low, present.as_mut_ptr().cast())
    };
    let is_absent = |at: usize| status == 0 && present[(at - low) / page] & 1 == 0;
    let from = (low..first).step_by(page).rev().take_while(|&at| is_absent(at)).last().unwrap_or(first);
    let behind = (first + page..high).step_by(page).take_while(|&at| is_absent(at)).last();
    from..behind.unwrap_or(first) + page
}

fn map_zeros(start: usize, len: usize, writable: bool) -> bool {
    let protection = if writable { libc::PROT_READ | libc::PROT_WRITE } else { libc::PROT_READ };
    let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE | libc::MAP_FIXED;
    let address = ptr::with_exposed_provenance_mut(start);
    // SAFETY: the pages belong to a guarded mapping that the faulting instruction keeps; no Rust reference is on
    // them, and they cannot be read anyway.
    let mapped = unsafe { libc::mmap(address, len, protection, flags, -1, 0) };
    mapped == address
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_slot_is_told_apart_from_what_it_was() {
        let slot = Slot::new();
        assert_eq!(slot.mapping(), None);
        assert!(slot.claim(1 << 20, 8192, true));
        assert!(!slot.claim(1 << 21, 4096, false));
        assert_eq!(slot.mapping(), Some((1 << 20, 8192, true)));
        assert!(slot.note_damage(4096, 4096) && !slot.note_damage(0, 8192));
        assert_eq!(slot.damage.load(Ordering::Relaxed), 4096);
        slot.release();
        assert_eq!(slot.mapping(), None);
        assert!(slot.claim(1 << 21, 4096, false));
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
        let again: Vec<_> =
            (0..bytes.len()).map(|index| Guard::new(address(index), 1, false, path)).collect();
        assert_eq!(chunks().count(), chunks_before);
        again.iter().for_each(Guard::end);
    }

    #[test]
    fn what_can_be_read_is_told_without_a_signal() {
        let page = os::page_bytes();
        let readable = vec![0_u8; 2 * page];
        assert!(is_readable(readable.as_ptr().expose_provenance()));
        assert!(!is_readable(page)); // below vm.mmap_min_addr
    }
}

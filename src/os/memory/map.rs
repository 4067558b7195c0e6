//! Read-only and copy-on-write mappings of files.

use std::mem::ManuallyDrop;
use std::os::fd::BorrowedFd;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering, fence};

use memmap2::{Mmap, MmapOptions, MmapRaw};
use rustix::io::Errno;

use super::page::page_bytes;
use super::uninit::Uninit;
use super::unmap;
use crate::os::fault;
use crate::os::fault::views::Guard;

/// How a file's pages are mapped.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Mapping {
    /// `MAP_SHARED`, `PROT_READ`: the page cache itself.
    Shared,
    /// `MAP_PRIVATE`, `PROT_READ`: also the page cache, for file systems that reject `MAP_SHARED` (FUSE with
    /// `direct_io`). It is no snapshot: changes of the file show.
    Private,
    /// `MAP_PRIVATE`, `PROT_READ | PROT_WRITE`, `MAP_NORESERVE`: a written page becomes anonymous memory; the file
    /// never changes. Without `MAP_NORESERVE` the whole length would count as committed memory (`Committed_AS`).
    CopyOnWrite,
}

/// A mapping of the first `len` bytes of a file. Unmapped when dropped.
#[derive(Debug)]
pub struct Region {
    raw: ManuallyDrop<MmapRaw>,
    mapping: Mapping,
    guard: Guard,
    /// Whether any caller got an address in it. Otherwise no page is mapped.
    is_used: AtomicBool,
}

impl Drop for Region {
    fn drop(&mut self) {
        self.guard.end();
        // SAFETY: `self` is being dropped, and nothing else takes the value.
        let raw = unsafe { ManuallyDrop::take(&mut self.raw) };
        if *self.is_used.get_mut() {
            unmap::unmap(raw);
        }
    }
}

impl Region {
    /// Maps `len` bytes from the start of the file; `path` is for messages. `len` must not be 0.
    pub fn map(file: BorrowedFd<'_>, path: &Path, len: usize, mapping: Mapping) -> Result<Self, Errno> {
        use std::os::fd::AsRawFd;
        let mut options = MmapOptions::new();
        options.len(len);
        let descriptor = file.as_raw_fd();
        let raw = match mapping {
            Mapping::Shared => options.map_raw_read_only(descriptor),
            Mapping::Private => {
                // SAFETY: the `Mmap` becomes a raw mapping before any slice of it exists.
                unsafe { options.map_copy_read_only(descriptor) }.map(|map: Mmap| MmapRaw::from(map))
            }
            Mapping::CopyOnWrite => {
                // SAFETY: as above; the pages are this process's own.
                unsafe { options.no_reserve_swap().map_copy(descriptor) }.map(MmapRaw::from)
            }
        };
        let raw = raw.map_err(|error| Errno::from_io_error(&error).unwrap_or(Errno::INVAL))?;
        let guard = Guard::new(raw.as_ptr(), len, mapping == Mapping::CopyOnWrite, path);
        Ok(Self { raw: ManuallyDrop::new(raw), mapping, guard, is_used: AtomicBool::new(false) })
    }

    pub fn len(&self) -> usize {
        self.raw.len()
    }

    pub fn mapping(&self) -> Mapping {
        self.mapping
    }

    /// Returns the first byte. Reading through the pointer can raise SIGBUS and race with other processes. Pass it on
    /// (buffer protocol, [`fault::copy()`]), but do not make a slice of it.
    pub fn as_ptr(&self) -> *const u8 {
        self.is_used.store(true, Ordering::Relaxed);
        self.raw.as_ptr()
    }

    /// Returns the address and length of a range, or `None` if it does not lie inside the mapping.
    pub fn range(&self, offset: usize, len: usize) -> Option<(*const u8, usize)> {
        let end = offset.checked_add(len)?;
        (end <= self.len()).then(|| (self.as_ptr().wrapping_add(offset), len))
    }

    /// Same as [`Self::range`], for a call that maps no page of the range.
    pub fn range_to_ask_about(&self, offset: usize, len: usize) -> Option<(*const u8, usize)> {
        let end = offset.checked_add(len)?;
        (end <= self.len()).then(|| (self.raw.as_ptr().wrapping_add(offset), len))
    }

    /// Copies `out.len()` bytes at `offset`. Returns whether one of their pages [ends in zeros](Uninit::has_zero_tail).
    /// After a fault, the error is the number of good bytes; it is 0 for a damaged mapping.
    ///
    /// [`fault::install_and_check`] must have returned `true` in this thread: without the handler a fault kills.
    pub fn copy_out(&self, offset: usize, mut out: Uninit<'_>) -> Result<bool, usize> {
        let Some((source, len)) = self.range(offset, out.len()) else { return Err(0) };
        // SAFETY: `range` checked that the source lies inside the mapping, which `self` keeps
        // mapped; `out` is exclusively borrowed and `len` long.
        let left = unsafe { fault::copy(out.as_mut_ptr(), source, len) };
        // The copy may contain zeros that replaced a damaged page. The thread that mapped them had set the mark before,
        // so we check the mark after the copy.
        fence(Ordering::Acquire);
        match left {
            // The contents of replaced pages are not data.
            _ if self.guard.is_damaged() => Err(0),
            // SAFETY: the copy wrote every byte.
            0 => Ok(unsafe { out.has_zero_tail(offset as u64) }),
            _ => Err(len - left),
        }
    }

    /// Overwrites bytes of copy-on-write pages, starting at `offset`. Returns false if that failed.
    ///
    /// [`fault::install_and_check`] must have returned `true` in this thread.
    pub fn overwrite(&self, offset: usize, bytes: &[u8]) -> bool {
        let Some((target, len)) = self.range(offset, bytes.len()) else { return false };
        // SAFETY: `range` checked that the target lies inside the mapping. The first operand checks that the pages are
        // writable and this process's own. `bytes` is `len` long.
        self.mapping == Mapping::CopyOnWrite
            && unsafe { fault::copy(target.cast_mut(), bytes.as_ptr(), len) } == 0
    }

    /// Returns an error if user code met an unreadable page of the mapping. Zeros have replaced the page, and no more
    /// of the mapping may be handed out.
    pub fn check_damage(&self) -> crate::error::Result<()> {
        self.guard.check()
    }

    /// Prefetches bytes that are in memory into the processor's caches. Never faults, and brings in no page. Ignores
    /// bytes outside of the mapping.
    pub fn prefetch(&self, offset: usize, len: usize) {
        const LINE_BYTES: usize = 64;
        let len = len.min(self.len().saturating_sub(offset));
        let Some((start, len)) = self.range(offset, len) else { return };
        for line in (0..len).step_by(LINE_BYTES) {
            prefetch_line(start.wrapping_add(line));
        }
    }

    /// Calls mlock(2) on the whole mapping.
    pub fn lock(&self) -> Result<(), Errno> {
        // SAFETY: the range is this mapping; locking does not change its contents.
        unsafe { rustix::mm::mlock(self.raw.as_mut_ptr().cast(), self.len()) }
    }

    pub fn unlock(&self) -> Result<(), Errno> {
        // SAFETY: as above.
        unsafe { rustix::mm::munlock(self.raw.as_mut_ptr().cast(), self.len()) }
    }

    /// Reads one byte of each page in the range, so that all of them are mapped. After a fault, the error is the offset
    /// of the failed page.
    pub fn touch(&self, offset: usize, len: usize) -> Result<(), usize> {
        let page = page_bytes();
        let mut byte = [0];
        let mut at = offset;
        while at < offset.saturating_add(len) {
            self.copy_out(at, Uninit::of(&mut byte)).map_err(|_| at)?;
            at = (at / page + 1) * page;
        }
        Ok(())
    }
}

#[cfg(target_arch = "x86_64")]
fn prefetch_line(address: *const u8) {
    use std::arch::x86_64::{_MM_HINT_T0, _mm_prefetch};
    // SAFETY: a hint, which does nothing at an unreadable address.
    unsafe { _mm_prefetch::<_MM_HINT_T0>(address.cast()) }
}

#[cfg(target_arch = "aarch64")]
fn prefetch_line(address: *const u8) {
    // SAFETY: a hint, which does nothing at an unreadable address; it changes no register.
    unsafe {
        std::arch::asm!(
            "prfm pldl1keep, [{address}]",
            address = in(reg) address,
            options(nostack, preserves_flags, readonly)
        );
    }
}

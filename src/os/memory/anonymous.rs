//! Anonymous memory for staging. It is page-aligned, and uses huge pages where they help. It grows in place or by
//! moving page tables (mremap(2)), never by copying. Shared memory is a memfd, which other processes can map and which
//! can be sealed.

use std::ops::Range;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::ptr::{self, NonNull};

use rustix::fs::{MemfdFlags, Mode, OFlags, SealFlags};
use rustix::io::Errno;
use rustix::mm::{Advice, MapFlags, MprotectFlags, MremapFlags, ProtFlags};

use super::page::page_bytes;
use crate::os::file::open;
use crate::os::process::parallel::in_parallel;
use crate::words::words;

/// The size of a transparent huge page on x86-64, and on aarch64 with 4 KiB pages.
pub const HUGE_PAGE_BYTES: usize = 2 << 20;

words! {
    /// Whether to ask the kernel for huge pages.
    pub enum HugePages as "huge_pages" {
        /// For blocks of at least [`HUGE_PAGE_BYTES`] (benches/compare/staging.py).
        Auto = "auto",
        Always = "always",
        Never = "never",
    }
}

words! {
    /// The permitted accesses to a block's memory.
    pub enum Protection as "protection" {
        Read = "read",
        ReadWrite = "readwrite",
    }
}

/// A block of anonymous memory. Unmapped when dropped.
#[derive(Debug)]
pub struct Anonymous {
    base: NonNull<u8>,
    len: usize,
    mapped: usize,
    /// The memfd of shared memory.
    descriptor: Option<OwnedFd>,
    huge: bool,
    protection: Protection,
    sealed: bool,
}

// SAFETY: only this value owns the block, and nothing in it is tied to a thread.
unsafe impl Send for Anonymous {}
// SAFETY: `&Anonymous` gives out an address and numbers, and makes the kernel allocate pages; it does not access their
// contents.
unsafe impl Sync for Anonymous {}

impl Anonymous {
    /// Allocates memory of this process, which its forked children see copy-on-write.
    pub fn private(len: usize, huge: HugePages) -> Result<Self, Errno> {
        Self::build(len, huge, None, false)
    }

    /// Allocates memory that other processes can map by [`Self::descriptor`]. It cannot shrink, so that no process can
    /// take pages away from another.
    pub fn shared(len: usize, huge: HugePages) -> Result<Self, Errno> {
        let flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING;
        let descriptor = rustix::fs::memfd_create("pagestream-staging", flags)?;
        rustix::fs::ftruncate(&descriptor, round_up(len)? as u64)?;
        rustix::fs::fcntl_add_seals(&descriptor, SealFlags::SHRINK)?;
        Self::build(len, huge, Some(descriptor), false)
    }

    /// Maps shared memory by a descriptor number, which stays the caller's. The mapping is read-only if the memory was
    /// sealed.
    pub fn from_descriptor(number: i32, len: usize, huge: HugePages) -> Result<Self, Errno> {
        let link = format!("/proc/self/fd/{number}");
        let descriptor = rustix::fs::open(link, OFlags::RDWR | OFlags::CLOEXEC, Mode::empty())?;
        let seals = rustix::fs::fcntl_get_seals(&descriptor)?;
        let size = rustix::fs::fstat(&descriptor)?.st_size;
        if !seals.contains(SealFlags::SHRINK) || u64::try_from(size).unwrap_or(0) < len as u64 {
            return Err(Errno::INVAL);
        }
        if seals.contains(SealFlags::WRITE) {
            // Before Linux 6.7, a shared mapping of sealed memory needs a read-only descriptor.
            return Self::build(len, HugePages::Never, Some(open::reopen(descriptor.as_fd())?), true);
        }
        Self::build(len, huge, Some(descriptor), false)
    }

    fn build(len: usize, huge: HugePages, descriptor: Option<OwnedFd>, sealed: bool) -> Result<Self, Errno> {
        let mapped = round_up(len)?;
        let huge = match huge {
            HugePages::Auto => len >= HUGE_PAGE_BYTES,
            HugePages::Always => true,
            HugePages::Never => false,
        };
        let base = reserve(mapped, huge)?;
        let protection = if sealed { Protection::Read } else { Protection::ReadWrite };
        let block = Self { base, len, mapped, descriptor, huge, protection, sealed };
        block.map_over()?;
        block.advise_huge();
        Ok(block)
    }

    /// Maps the memory over the reserved addresses.
    fn map_over(&self) -> Result<(), Errno> {
        let protection = match self.protection {
            Protection::Read => ProtFlags::READ,
            Protection::ReadWrite => ProtFlags::READ | ProtFlags::WRITE,
        };
        let address = self.base.as_ptr().cast();
        let shared = MapFlags::SHARED | MapFlags::FIXED;
        let private = MapFlags::PRIVATE | MapFlags::FIXED;
        match &self.descriptor {
            // SAFETY: the addresses were reserved by `reserve` for this block, nothing else lies there.
            Some(file) => unsafe { rustix::mm::mmap(address, self.mapped, protection, shared, file, 0) },
            // SAFETY: as above.
            None => unsafe { rustix::mm::mmap_anonymous(address, self.mapped, protection, private) },
        }
        .map(drop)
    }

    fn advise_huge(&self) {
        if self.huge {
            // SAFETY: the range is this block; the advice does not change its contents. Best effort: a kernel without
            // huge pages answers EINVAL.
            let _ =
                unsafe { rustix::mm::madvise(self.base.as_ptr().cast(), self.mapped, Advice::LinuxHugepage) };
        }
    }

    /// Makes the kernel allocate the pages now, with `threads` threads. Allocating page after page takes the kernel
    /// longer than filling them. Best effort: Linux before 5.14 allocates pages at their first use.
    pub fn populate(&self, threads: usize) {
        if self.protection == Protection::Read {
            return;
        }
        let part_bytes = self.mapped.div_ceil(threads.max(1)).next_multiple_of(HUGE_PAGE_BYTES);
        let populate = |part: usize| {
            let start = part * part_bytes;
            let len = part_bytes.min(self.mapped - start);
            let address = self.base.as_ptr().wrapping_add(start).cast();
            // SAFETY: `start + len` is at most `self.mapped`, so the range lies in this block, which stays mapped while
            // it is borrowed. The advice does not change its contents.
            let _ = unsafe { rustix::mm::madvise(address, len, Advice::LinuxPopulateWrite) };
            Ok(())
        };
        let _ = in_parallel(self.mapped.div_ceil(part_bytes), threads, populate);
    }

    /// Returns the first byte. It is valid for `len` bytes until the block is resized, sealed or dropped.
    pub fn as_ptr(&self) -> *mut u8 {
        self.base.as_ptr()
    }

    pub fn len(&self) -> usize {
        self.len
    }

    pub fn descriptor(&self) -> Option<BorrowedFd<'_>> {
        self.descriptor.as_ref().map(AsFd::as_fd)
    }

    pub fn protection(&self) -> Protection {
        self.protection
    }

    pub fn is_sealed(&self) -> bool {
        self.sealed
    }

    /// Grows the block or, if it is private, shrinks it. The address may change. New bytes are zero, unless another
    /// process that shares them has written to them.
    pub fn resize(&mut self, len: usize) -> Result<(), Errno> {
        let mapped = round_up(len)?;
        if self.sealed || (len < self.len && self.descriptor.is_some()) {
            return Err(Errno::PERM);
        }
        if let Some(file) = &self.descriptor {
            // Another process may have grown the memory already; it cannot shrink.
            if (rustix::fs::fstat(file)?.st_size as u64) < mapped as u64 {
                rustix::fs::ftruncate(file, mapped as u64)?;
            }
        }
        if mapped != self.mapped {
            let target = reserve(mapped, self.huge)?;
            // SAFETY: `&mut self` guarantees that no code uses the old address. The block owns both ranges; the call
            // unmaps the old range and replaces the reserved one.
            let moved = unsafe {
                rustix::mm::mremap_fixed(
                    self.base.as_ptr().cast(),
                    self.mapped,
                    mapped,
                    MremapFlags::MAYMOVE,
                    target.as_ptr().cast(),
                )
            };
            if let Err(errno) = moved {
                unmap(target, mapped);
                return Err(errno);
            }
            (self.base, self.mapped) = (target, mapped);
            self.advise_huge();
        }
        let kept = self.len.min(len);
        self.len = len;
        if self.descriptor.is_none() { self.clear_page_tail(kept) } else { Ok(()) }
    }

    /// Clears the last page from `from` on, because it may hold bytes from before a shrink.
    fn clear_page_tail(&mut self, from: usize) -> Result<(), Errno> {
        let end = from.next_multiple_of(page_bytes()).min(self.mapped);
        if from == end {
            return Ok(());
        }
        let before = self.protection;
        self.protect(Protection::ReadWrite)?;
        let tail = self.base.as_ptr().wrapping_add(from);
        // SAFETY: `from..end` lies inside the block, which is writable.
        unsafe { ptr::write_bytes(tail, 0, end - from) };
        self.protect(before)
    }

    /// Changes the permitted accesses (mprotect(2)). A write to a `Read` block is a segmentation fault.
    pub fn protect(&mut self, protection: Protection) -> Result<(), Errno> {
        if self.sealed && protection == Protection::ReadWrite {
            return Err(Errno::PERM);
        }
        let flags = match protection {
            Protection::Read => MprotectFlags::READ,
            Protection::ReadWrite => MprotectFlags::READ | MprotectFlags::WRITE,
        };
        // SAFETY: the range is this block.
        unsafe { rustix::mm::mprotect(self.base.as_ptr().cast(), self.mapped, flags) }?;
        self.protection = protection;
        Ok(())
    }

    /// Makes shared memory immutable for every process, for good: F_SEAL_WRITE and F_SEAL_GROW. Fails with EBUSY, and
    /// changes nothing, while another process has it mapped writable.
    pub fn seal(&mut self) -> Result<(), Errno> {
        if self.sealed {
            return Ok(());
        }
        // All steps that can fail come before the seal, which is permanent.
        let file = self.descriptor.as_ref().ok_or(Errno::INVAL)?;
        let read_only = open::reopen(file.as_fd())?;
        let placeholder = reserve(self.mapped, self.huge)?;
        // The kernel refuses to seal while a writable mapping exists, including ours.
        unmap(self.base, self.mapped);
        self.base = placeholder;
        if let Err(errno) = rustix::fs::fcntl_add_seals(file, SealFlags::WRITE | SealFlags::GROW) {
            self.map_over().inspect_err(|_| self.len = 0)?;
            return Err(errno);
        }
        self.descriptor = Some(read_only);
        (self.sealed, self.protection) = (true, Protection::Read);
        // Over a reservation of the same size this fails only if the kernel lacks memory. Then nothing is left to
        // export.
        self.map_over().inspect_err(|_| self.len = 0)
    }

    /// Returns the addresses of the block, for [`huge_page_bytes`].
    pub fn addresses(&self) -> Range<usize> {
        let start = self.base.as_ptr().addr();
        start..start + self.mapped
    }
}

/// Returns the number of the block's bytes that are on huge pages now, from `/proc/self/smaps`.
pub fn huge_page_bytes(addresses: &Range<usize>) -> u64 {
    let Ok(text) = std::fs::read_to_string("/proc/self/smaps") else { return 0 };
    let (mut counts, mut total) = (false, 0);
    for line in text.lines() {
        let mut words = line.split_ascii_whitespace();
        let (Some(first), Some(second)) = (words.next(), words.next()) else { continue };
        if let Some(start) =
            first.split_once('-').and_then(|(start, _)| usize::from_str_radix(start, 16).ok())
        {
            counts = addresses.contains(&start);
        } else if counts && (first == "AnonHugePages:" || first == "ShmemPmdMapped:") {
            total += second.parse::<u64>().unwrap_or(0) * 1024;
        }
    }
    total
}

impl Drop for Anonymous {
    fn drop(&mut self) {
        unmap(self.base, self.mapped);
    }
}

fn round_up(len: usize) -> Result<usize, Errno> {
    len.max(1)
        .checked_next_multiple_of(page_bytes())
        .filter(|&len| isize::try_from(len).is_ok())
        .ok_or(Errno::NOMEM)
}

/// Reserves addresses for `mapped` bytes, aligned to a huge page if `huge`.
fn reserve(mapped: usize, huge: bool) -> Result<NonNull<u8>, Errno> {
    let slack = if huge { HUGE_PAGE_BYTES } else { 0 };
    let total = mapped.checked_add(slack).ok_or(Errno::NOMEM)?;
    let flags = MapFlags::PRIVATE | MapFlags::NORESERVE;
    // SAFETY: a new mapping without access, at an address that the kernel picks.
    let address = unsafe { rustix::mm::mmap_anonymous(ptr::null_mut(), total, ProtFlags::empty(), flags) }?;
    let start = NonNull::new(address.cast::<u8>()).ok_or(Errno::NOMEM)?;
    if !huge {
        return Ok(start);
    }
    let before = start.as_ptr().align_offset(HUGE_PAGE_BYTES);
    let base = start.as_ptr().wrapping_add(before);
    let after = base.wrapping_add(mapped);
    for (piece, bytes) in [(start.as_ptr(), before), (after, slack - before)] {
        if let (Some(piece), 1..) = (NonNull::new(piece), bytes) {
            unmap(piece, bytes);
        }
    }
    NonNull::new(base).ok_or(Errno::NOMEM)
}

fn unmap(base: NonNull<u8>, bytes: usize) {
    // SAFETY: callers own the range and have given up its address. The call cannot fail for whole mapped pages, and
    // nothing could be done if it did.
    let _ = unsafe { rustix::mm::munmap(base.as_ptr().cast(), bytes) };
}

//! Advice to the kernel about a mapping and about a file's cached pages.

use std::num::NonZeroU64;
use std::ops::Range;
use std::os::fd::BorrowedFd;

use rustix::fs::Advice as FileAdvice;
use rustix::io::Errno;
use rustix::mm::Advice as MapAdvice;

use super::map::{Mapping, Region};
use super::page::whole_pages;
use crate::words::words;

words! {
    /// The advice of madvise(2) that makes sense for reading a file. `MADV_POPULATE_READ` is missing: before Linux 6.9
    /// it spins forever on an unreadable page.
    pub enum Advice as "advice" {
        Normal = "normal",
        Random = "random",
        Sequential = "sequential",
        WillNeed = "willneed",
        DontNeed = "dontneed",
        Cold = "cold",
        HugePage = "hugepage",
    }
}

impl Advice {
    fn for_map(self) -> MapAdvice {
        match self {
            Self::Normal => MapAdvice::Normal,
            Self::Random => MapAdvice::Random,
            Self::Sequential => MapAdvice::Sequential,
            Self::WillNeed => MapAdvice::WillNeed,
            Self::DontNeed => MapAdvice::LinuxDontNeed,
            Self::Cold => MapAdvice::LinuxCold,
            Self::HugePage => MapAdvice::LinuxHugepage,
        }
    }

    /// Returns the advice for posix_fadvise(2). It lacks the last two, and its `DontNeed` drops the cache itself.
    fn for_file(self) -> Option<FileAdvice> {
        match self {
            Self::Normal => Some(FileAdvice::Normal),
            Self::Random => Some(FileAdvice::Random),
            Self::Sequential => Some(FileAdvice::Sequential),
            Self::WillNeed => Some(FileAdvice::WillNeed),
            Self::DontNeed | Self::Cold | Self::HugePage => None,
        }
    }
}

/// Advises on the pages of a range of a mapping (madvise(2)). Rejects `DontNeed` for copy-on-write pages, because it
/// would discard the user's writes.
pub fn advise_map(region: &Region, offset: usize, len: usize, advice: Advice) -> Result<(), Errno> {
    if advice == Advice::DontNeed && region.mapping() == Mapping::CopyOnWrite {
        return Err(Errno::INVAL);
    }
    let (start, len) = whole_pages(offset, len);
    let len = len.min(region.len().saturating_sub(start));
    let Some((address, len)) = region.range(start, len) else { return Err(Errno::INVAL) };
    // SAFETY: `range` checked that the pages belong to the region. They are read-only file pages, or the advice is not
    // `DontNeed`, so no advice changes their contents.
    unsafe { rustix::mm::madvise(address.cast_mut().cast(), len, advice.for_map()) }
}

/// Discards all writes to the whole pages inside a range of a copy-on-write mapping, which then show the file again. No
/// code that needs these writes may use the bytes meanwhile.
pub fn discard_writes(region: &Region, range: &Range<usize>) -> Result<(), Errno> {
    if region.mapping() != Mapping::CopyOnWrite {
        return Err(Errno::INVAL);
    }
    let Some((address, len)) = region.range(range.start, range.len()) else { return Err(Errno::INVAL) };
    // SAFETY: `range` checked that the pages belong to the region. The first check ensured that they are this process's
    // own memory, with the file's pages behind it. No Rust reference points to mapped memory.
    unsafe { rustix::mm::madvise(address.cast_mut().cast(), len, MapAdvice::LinuxDontNeed) }
}

/// Makes the kernel reclaim a region's pages that no other process maps (Linux 5.4). Pages of the file leave the cache.
/// Written pages go to swap, or stay if there is no swap. Best effort.
pub fn reclaim(region: &Region) {
    if let Some((address, len)) = region.range(0, region.len()) {
        // SAFETY: `range` checked that the pages belong to the region. Their contents do not change.
        let _ = unsafe { rustix::mm::madvise(address.cast_mut().cast(), len, MapAdvice::LinuxPageOut) };
    }
}

/// Advises on a range of a file that is read rather than mapped (posix_fadvise(2)). Returns whether the kernel accepted
/// the advice, which it may not know.
pub fn advise_file(file: BorrowedFd<'_>, offset: u64, len: u64, advice: Advice) -> bool {
    let Some(advice) = advice.for_file() else { return false };
    // To the system, a length of 0 means up to the file's end.
    len == 0 || rustix::fs::fadvise(file, offset, NonZeroU64::new(len), advice).is_ok()
}

/// Writes dirty pages to the disk, because they cannot be dropped before. Best effort: a read-only file system has
/// none.
pub fn write_out(file: BorrowedFd<'_>) {
    let _ = rustix::fs::fdatasync(file);
}

/// Drops the cached pages of a range, widened to whole pages, that are clean and unmapped in every process. A length of
/// 0 means up to the file's end.
pub fn drop_cache(file: BorrowedFd<'_>, offset: u64, len: u64) -> Result<(), Errno> {
    let (start, len) = whole_pages(offset as usize, len as usize);
    rustix::fs::fadvise(file, start as u64, NonZeroU64::new(len as u64), FileAdvice::DontNeed)
}

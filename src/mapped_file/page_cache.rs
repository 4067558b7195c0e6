//! The page cache of an open file: advice, residency, read-ahead, warming, eviction.

use std::ops::Range;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;

use crate::allocate;
use crate::error::Result;
use crate::os::errno::system;
use crate::os::fault;
use crate::os::file::fsinfo;
use crate::os::memory::advise::{self, Advice};
use crate::os::memory::map::Region;
use crate::os::memory::residency::{self, Residency};
use crate::os::memory::{Uninit, page_bytes};
use crate::os::process::fork;
use crate::words::words;

use super::identity::is_same_file;
use super::locking;
use super::mode::Mode;
use super::offer::{self, Asked};
use super::opened::Opened;
use super::origin::Origin;

/// Chunk size for read-ahead and reads while warming.
const WARM_CHUNK_BYTES: u64 = 8 << 20;

/// For one `MADV_WILLNEED`, the kernel reads no more than its read-ahead window, or the device's largest request
/// (`force_page_cache_ra` in mm/readahead.c). It makes requests of at most 2 MiB. If the window is unknown, we assume
/// the usual one.
const MOST_AHEAD_BYTES: u64 = 2 << 20;
const USUAL_AHEAD_BYTES: u64 = 128 << 10;

/// Called with the bytes done so far; returning `false` stops.
pub type Progress<'a> = dyn FnMut(u64) -> bool + 'a;

words! {
    /// The pages that a reader drops from memory after their use.
    pub enum DropBehind as "drop_behind" {
        /// Pages leave this process's resident set; the page cache keeps them.
        Resident = "resident",
        /// Pages leave the page cache, too, unless another process maps them.
        Cache = "cache",
    }
}

/// Which pages of a range are in the page cache.
#[derive(Debug)]
pub struct ResidentPages {
    page_bytes: u64,
    first: u64,
    pages: Vec<bool>,
}

impl ResidentPages {
    /// Returns whether the cache has all pages of a range, which must lie inside the examined range.
    pub fn contain(&self, offset: u64, length: u64) -> bool {
        let start = (offset / self.page_bytes).saturating_sub(self.first);
        let stop = (offset + length).div_ceil(self.page_bytes).saturating_sub(self.first);
        self.pages.get(start as usize..stop as usize).is_some_and(|pages| pages.iter().all(|&cached| cached))
    }

    /// Returns the number of bytes between `offset` and `end` in pages that the cache lacks. The range must lie inside
    /// the examined range.
    pub fn missing_bytes(&self, offset: u64, end: u64) -> u64 {
        let missing = (self.first..).zip(&self.pages).filter(|&(_, &cached)| !cached);
        let inside = |page: u64| {
            let start = page * self.page_bytes;
            (start + self.page_bytes).min(end).saturating_sub(start.max(offset))
        };
        missing.map(|(page, _)| inside(page)).sum()
    }
}

/// Advises the kernel. Returns whether the kernel accepted the advice: a refusal is not an error.
pub fn advise(opened: &Opened, advice: Advice, offset: u64, length: u64) -> Result<bool> {
    opened.check_range(offset, length)?;
    let lasting = matches!(advice, Advice::Normal | Advice::Random | Advice::Sequential | Advice::HugePage);
    if lasting && (offset, length) == (0, opened.size()) {
        let taken = opened.advise_descriptor(advice);
        return Ok(taken && opened.region.as_ref().is_none_or(|_| pass_on(opened, advice, offset, length)));
    }
    Ok(pass_on(opened, advice, offset, length))
}

/// Reapplies the advice for the old mapping to a new one, and locks the new one if the old one was locked.
pub(super) fn reapply_hints(opened: &Opened) -> Result<()> {
    let Some(region) = &opened.region else { return Ok(()) };
    let hints = fork::with_lock(&opened.hints, |hints| *hints);
    if let Some(advice) = hints.advice {
        pass_on(opened, advice, 0, opened.size());
    }
    if hints.locked { locking::lock_region(opened, region) } else { Ok(()) }
}

fn pass_on(opened: &Opened, advice: Advice, offset: u64, length: u64) -> bool {
    match &opened.region {
        Some(region) => {
            let (offset, length) = (offset as usize, length as usize);
            if let Some(region) = opened.copy_on_write() {
                // Discarding written pages would lose the writes.
                let kept = if advice == Advice::DontNeed { Advice::Cold } else { advice };
                let _ = advise::advise_map(region, offset, length, kept);
            }
            advise::advise_map(region, offset, length, advice).is_ok()
        }
        None => advise::advise_file(opened.file(), offset, length, advice),
    }
}

/// Returns which pages of a range are in the page cache.
pub fn residency(opened: &Opened, offset: u64, length: u64, seed: u64) -> Result<Residency> {
    opened.check_range(offset, length)?;
    let region = opened.region.as_deref();
    // Probing an uncached page must not bring in its neighbours.
    let exactly = || opened.without_read_ahead();
    Ok(residency::residency(opened.file(), region, offset, length, seed, exactly))
}

/// Returns whether a range is entirely in the page cache, or `None` if that cannot be determined cheaply.
pub fn is_resident(opened: &Opened, offset: u64, length: u64) -> Option<bool> {
    residency::is_resident(told_region(opened)?, offset as usize, length as usize)
}

/// Returns which pages of a range are in the page cache, or `None` if that cannot be determined cheaply.
pub fn resident_pages(opened: &Opened, offset: u64, length: u64) -> Option<ResidentPages> {
    let page_bytes = page_bytes() as u64;
    let first = offset / page_bytes;
    let count = offset.checked_add(length)?.div_ceil(page_bytes).checked_sub(first)?;
    let pages = residency::mincore(told_region(opened)?, first as usize, count as usize)?;
    Some(ResidentPages { page_bytes, first, pages })
}

/// Returns whether more than a hundredth of a file is in the page cache, as far as the kernel shows.
pub fn holds_pages(opened: &Opened) -> bool {
    let found = resident_pages(opened, 0, opened.size());
    found.is_some_and(|found| found.missing_bytes(0, opened.size()) < opened.size() / 100 * 99)
}

/// Returns the mapping, if the kernel shows this user which of its pages are cached.
fn told_region(opened: &Opened) -> Option<&Region> {
    let region = opened.region.as_deref()?;
    let told = fork::get_or_make(&opened.residency_is_told, || residency::kernel_tells_truth(opened.file()));
    told.then_some(region)
}

/// Asks the kernel to read a range ahead, without waiting for it. Stops at the first refusal.
pub fn fetch_ahead(opened: &Opened, offset: u64, length: u64) {
    let (end, chunk_bytes) = (offset + length, ahead_chunk_bytes(opened));
    for start in (offset..end).step_by(chunk_bytes as usize) {
        if !pass_on(opened, Advice::WillNeed, start, chunk_bytes.min(end - start)) {
            return;
        }
    }
}

/// Returns the kernel's own read-ahead for a sequential reader, if it is known.
pub fn read_ahead_bytes(opened: &Opened) -> Option<u64> {
    fsinfo::read_ahead_bytes_of(opened.facts.identity.device)
}

/// Returns the number of bytes that the kernel fetches per request.
fn ahead_chunk_bytes(opened: &Opened) -> u64 {
    *fork::get_or_make(&opened.ahead_chunk_bytes, || {
        let window = read_ahead_bytes(opened).filter(|&bytes| bytes > 0);
        window.unwrap_or(USUAL_AHEAD_BYTES).clamp(page_bytes() as u64, MOST_AHEAD_BYTES)
    })
}

/// Returns the second description of a file: an existing one, the description of the process that offers the file, or a
/// new one.
fn adviser(opened: &Opened) -> Option<Arc<OwnedFd>> {
    let made = fork::with_lock(&opened.offering.adviser, Option::take);
    if made.is_some() {
        return made;
    }
    match offer::take_or_claim(&Origin::Path(opened.named.clone())) {
        Asked::Taken(taken) if is_same_file(&taken.identity, &opened.facts.identity) => {
            taken.adviser.map(Arc::new)
        }
        _ if opened.offering.is_taken => None,
        asked => opened.open_adviser(asked).ok(),
    }
}

/// Asks the kernel for ranges of a file through an open file description of its own.
///
/// Page faults keep their read-ahead state in the description of the mapping. Once they have such a state, FUSE
/// silently skips requests while its queue is full (`fuse_readahead` in fs/fuse/file.c).
#[derive(Debug)]
pub struct Prefetcher {
    file: Arc<OwnedFd>,
    size_bytes: u64,
    chunk_bytes: u64,
    /// The last requested range.
    last: Range<u64>,
}

impl Prefetcher {
    /// Takes the description of a process that offers the file, or opens the file again and offers it. On FUSE an open
    /// drops the cached pages. Call this before anything is fetched, and not if others have fetched pages.
    pub fn new(opened: &Opened) -> Option<Self> {
        let file = adviser(opened)?;
        let chunk_bytes = ahead_chunk_bytes(opened);
        // A sequential reader gets twice the window (`generic_fadvise` in mm/fadvise.c).
        let is_doubled = advise::advise_file(file.as_fd(), 0, opened.size(), Advice::Sequential);
        let chunk_bytes = if is_doubled { (2 * chunk_bytes).min(MOST_AHEAD_BYTES) } else { chunk_bytes };
        Some(Self { file, size_bytes: opened.size(), chunk_bytes, last: 0..0 })
    }

    /// Returns whether the last call of [`Self::fetch`] requested all of a range.
    pub fn has_asked(&self, offset: u64, length: u64) -> bool {
        self.last.start <= offset && offset + length <= self.last.end
    }

    /// Requests a range inside the file, with the surroundings that a page fault would read. Waits while the queue is
    /// full.
    pub fn fetch(&mut self, offset: u64, length: u64) {
        let end = (offset + length).next_multiple_of(self.chunk_bytes).min(self.size_bytes);
        let begin = offset - offset % self.chunk_bytes;
        let begin = if self.last.contains(&begin) { self.last.end } else { begin };
        self.last = begin..end;
        for start in (begin..end).step_by(self.chunk_bytes as usize) {
            let chunk = self.chunk_bytes.min(end - start);
            if !advise::advise_file(self.file.as_fd(), start, chunk, Advice::WillNeed) {
                return;
            }
        }
    }
}

/// Tells the kernel that the program has used views of a range. They stay valid. Best effort.
///
/// The kernel counts pages that were read and then touched as used twice. If memory is short, it would keep them and
/// drop pages that were read ahead instead.
pub fn mark_used(opened: &Opened, offset: u64, length: u64) {
    for region in opened.regions() {
        let _ = advise::advise_map(region, offset as usize, length as usize, Advice::Cold);
    }
}

/// Drops a range that was read. Best effort: a page that another process maps stays in the cache.
pub fn drop_behind(opened: &Opened, offset: u64, length: u64, what: DropBehind) {
    if let Some(region) = &opened.region {
        let _ = advise::advise_map(region, offset as usize, length as usize, Advice::DontNeed);
    }
    if what == DropBehind::Cache {
        let _ = advise::drop_cache(opened.file(), offset, length);
    }
}

/// Drops those pages of a range that were not in the page cache before it was read, or all pages if that is unknown.
pub fn restore(opened: &Opened, offset: u64, length: u64, before: Option<&ResidentPages>) {
    let page_bytes = page_bytes() as u64;
    let first = offset / page_bytes;
    let last = (offset + length).div_ceil(page_bytes);
    let was_absent = |page: u64| {
        before.is_none_or(|before| !before.pages.get((page - first) as usize).is_some_and(|&cached| cached))
    };
    let mut page = first;
    while page < last {
        let end = (page..last).find(|&other| was_absent(other) != was_absent(page)).unwrap_or(last);
        if was_absent(page) {
            let start = page * page_bytes;
            // The last page may extend beyond the end of the file.
            let end = (end * page_bytes).min(opened.size());
            drop_behind(opened, start, end - start, DropBehind::Cache);
        }
        page = end;
    }
}

/// Reads a range into the page cache.
pub fn warm(opened: &Opened, offset: u64, length: u64, progress: &mut Progress<'_>) -> Result<()> {
    opened.check_range(offset, length)?;
    let mut scratch = allocate::vec(WARM_CHUNK_BYTES.min(length) as usize, "warming a file")?;
    let mut done = 0;
    while done < length {
        let chunk = WARM_CHUNK_BYTES.min(length - done);
        let ahead = WARM_CHUNK_BYTES.min(length - done - chunk);
        // Optional: without it the chunks are still read, one after another.
        pass_on(opened, Advice::WillNeed, offset + done + chunk, ahead);
        warm_chunk(opened, offset + done, chunk, &mut scratch)?;
        done += chunk;
        if !progress(done) {
            break;
        }
    }
    Ok(())
}

/// Reads with pread, which does not change the resident set. A private mapping may lie on a mount where pread bypasses
/// the cache (FUSE `direct_io`), so its pages are touched instead.
fn warm_chunk(opened: &Opened, offset: u64, length: u64, scratch: &mut Vec<u8>) -> Result<()> {
    match &opened.region {
        Some(region) if opened.facts.mode == Mode::Private && fault::install_and_check() => {
            let (start, len) = (offset as usize, length as usize);
            // If a page fails, pread either reads it or returns the reason.
            region
                .touch(start, len)
                .or_else(|failed| opened.pread_into(failed as u64, Uninit::of(&mut [0])).map(drop))?;
            // Remove the pages from the resident set. The cache keeps them.
            let _ = advise::advise_map(region, start, len, Advice::DontNeed);
            Ok(())
        }
        _ => {
            let scratch = Uninit::spare(&mut scratch.spare_capacity_mut()[..length as usize]);
            opened.pread_into(offset, scratch).map(drop)
        }
    }
}

/// Writes dirty pages, then drops the file's clean pages from the page cache and from this process's mapping. Pages
/// that another process maps stay.
pub fn evict(opened: &Opened) -> Result<()> {
    advise::write_out(opened.file());
    if let Some(region) = &opened.region {
        let _ = advise::advise_map(region, 0, region.len(), Advice::DontNeed);
    }
    if let Some(region) = opened.copy_on_write() {
        advise::reclaim(region);
    }
    advise::drop_cache(opened.file(), 0, 0).map_err(|errno| system("cannot evict", opened.path(), errno, ""))
}

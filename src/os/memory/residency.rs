//! Finds out which pages of a file are in the page cache.
//!
//! It tries three methods in this order:
//! 1. mincore(2) on the mapping. It is exact for the file's owner and for users that may write to it. To all others the
//!    kernel answers that everything is cached (since 5.2, against side channels), so the method is skipped.
//! 2. cachestat(2) (Linux 6.5) for files that are not mapped, with the same rule about permission.
//! 3. `preadv2(RWF_NOWAIT)` of one byte, which fails where it would have to wait. It is exact for every user, but it
//!    fetches each missing page (read-ahead is off meanwhile), so only a sample is probed. A call that was interrupted
//!    between the fetch and the answer finds the page. The thread's count of blocks read (getrusage(2)) shows that the
//!    call asked a device.

use std::io::IoSliceMut;
use std::os::fd::{AsRawFd, BorrowedFd};

use rustix::fs::{Access, AtFlags};
use rustix::io::{Errno, ReadWriteFlags};
use rustix::thread::CapabilitySet;

use super::map::Region;
use super::page::{page_bytes, whole_pages};
use crate::allocate;
use crate::mix::{GAMMA, mix};
use crate::os::process::usage::Usage;
use crate::words::words;

/// Maximum number of pages in a sample.
pub const SAMPLE_PAGES: u64 = 1024;

/// Maximum number of listed pages (256 GiB of 4 KiB). For longer ranges only the fraction is returned.
pub const MAX_LISTED_PAGES: u64 = 1 << 26;

/// Number of pages per call of mincore.
const CHUNK_PAGES: usize = 1 << 18;
/// The purpose of memory for a list of pages.
const PAGES: &str = "the list of cached pages";

words! {
    /// The method that found the cached pages.
    pub enum Method as "method" {
        Mincore = "mincore",
        Cachestat = "cachestat",
        NoWait = "preadv2",
        /// No method works here for this user.
        Unavailable = "unavailable",
    }
}

#[derive(Debug, Clone, PartialEq)]
pub struct Residency {
    /// Fraction of the probed pages that are in the cache; NaN if none could be probed.
    pub fraction: f64,
    /// One entry per page of the range, if every page was probed and the range is not too long to list.
    pub pages: Option<Vec<bool>>,
    pub method: Method,
    /// Whether every page was probed by a method that does not change the cache.
    pub exact: bool,
}

impl Residency {
    fn counted(pages: Vec<bool>, method: Method, exact: bool) -> Self {
        let resident = pages.iter().filter(|&&resident| resident).count();
        let fraction = if pages.is_empty() { 1.0 } else { resident as f64 / pages.len() as f64 };
        Self { fraction, pages: Some(pages), method, exact }
    }
}

/// Asks about `len` bytes from `offset`; both lie inside the file. `seed` picks the sample. While the result of
/// `exactly` lives, read-ahead does not extend reads by the descriptor.
pub fn residency<Guard>(
    file: BorrowedFd<'_>,
    region: Option<&Region>,
    offset: u64,
    len: u64,
    seed: u64,
    exactly: impl FnOnce() -> Guard,
) -> Residency {
    let page = page_bytes() as u64;
    let first = offset / page;
    let count = if len == 0 { 0 } else { (offset + len).div_ceil(page) - first };
    if count == 0 {
        return Residency::counted(Vec::new(), Method::Mincore, true);
    }
    let truth = kernel_tells_truth(file);
    if truth && count > MAX_LISTED_PAGES {
        if let Ok(cached) = cachestat_range(file, first, count) {
            let fraction = cached as f64 / count as f64;
            return Residency { fraction, pages: None, method: Method::Cachestat, exact: true };
        }
    } else if truth {
        if let Some(pages) = region.and_then(|region| mincore(region, first as usize, count as usize)) {
            return Residency::counted(pages, Method::Mincore, true);
        }
        if let Ok(pages) = cachestat(file, first, count) {
            return Residency::counted(pages, Method::Cachestat, true);
        }
    }
    let _exactly = exactly();
    sample(file, first, count, seed)
}

/// Returns whether the kernel shows this user which pages are cached. The rule is `can_do_mincore` in mm/mincore.c:
/// owner, CAP_FOWNER or write permission.
pub fn kernel_tells_truth(file: BorrowedFd<'_>) -> bool {
    let owner = rustix::fs::fstat(file).is_ok_and(|stat| stat.st_uid == rustix::process::geteuid().as_raw());
    let capable = || {
        rustix::thread::capabilities(None).is_ok_and(|sets| sets.effective.contains(CapabilitySet::FOWNER))
    };
    let writable = || {
        let link = format!("/proc/self/fd/{}", file.as_raw_fd());
        rustix::fs::accessat(rustix::fs::CWD, link, Access::WRITE_OK, AtFlags::EACCESS).is_ok()
    };
    owner || capable() || writable()
}

/// Returns which of the `count` pages from number `first` are in the cache, or `None` if mincore fails. Call this only
/// if [`kernel_tells_truth`].
pub fn mincore(region: &Region, first: usize, count: usize) -> Option<Vec<bool>> {
    let page = page_bytes();
    let mut pages = allocate::vec(count, PAGES).ok()?;
    let mut answer = allocate::filled(0_u8, count.clamp(1, CHUNK_PAGES), PAGES).ok()?;
    ask_mincore(region, first * page, count * page, &mut answer, |present| {
        pages.extend(present.iter().map(|byte| byte & 1 == 1));
        true
    })?;
    Some(pages)
}

/// Returns whether every page of a short range is in the cache, or `None` if mincore fails. Call this only if
/// [`kernel_tells_truth`].
pub fn is_resident(region: &Region, offset: usize, len: usize) -> Option<bool> {
    let (start, len) = whole_pages(offset, len);
    let mut all = true;
    ask_mincore(region, start, len, &mut [0; 64], |present| {
        all = present.iter().all(|byte| byte & 1 == 1);
        all
    })?;
    Some(all)
}

/// Calls `go_on` with a byte for each page of a range, with as many pages at a time as fit into `answer`, until it
/// returns false. Returns `None` if mincore fails.
fn ask_mincore(
    region: &Region,
    start: usize,
    len: usize,
    answer: &mut [u8],
    mut go_on: impl FnMut(&[u8]) -> bool,
) -> Option<()> {
    let (address, len) = region.range_to_ask_about(start, len.min(region.len().checked_sub(start)?))?;
    let page = page_bytes();
    let chunk = answer.len() * page;
    for first in (0..len).step_by(chunk) {
        let bytes = chunk.min(len - first);
        let address = address.wrapping_add(first).cast_mut().cast();
        // SAFETY: `range_to_ask_about` checked that the pages belong to the region, and `answer` has a byte for each.
        if unsafe { libc::mincore(address, bytes, answer.as_mut_ptr()) } != 0 {
            return None;
        }
        if !go_on(&answer[..bytes.div_ceil(page)]) {
            break;
        }
    }
    Some(())
}

#[repr(C)]
struct CachestatRange {
    offset: u64,
    len: u64,
}

#[repr(C)]
#[derive(Default)]
struct Cachestat {
    cached: u64,
    dirty: u64,
    writeback: u64,
    evicted: u64,
    recently_evicted: u64,
}

/// Lists the cached pages with cachestat(2), which only counts the pages of a range: it halves ranges until each is
/// full or empty.
fn cachestat(file: BorrowedFd<'_>, first: u64, count: u64) -> Result<Vec<bool>, Errno> {
    let mut pages = allocate::filled(false, count as usize, PAGES).map_err(|_| Errno::NOMEM)?;
    let mut open = vec![(0_u64, count)];
    while let Some((start, len)) = open.pop() {
        let cached = cachestat_range(file, first + start, len)?;
        if cached >= len {
            pages[start as usize..(start + len) as usize].fill(true);
        } else if cached > 0 {
            let half = len / 2;
            open.extend([(start, half), (start + half, len - half)]);
        }
    }
    Ok(pages)
}

fn cachestat_range(file: BorrowedFd<'_>, first: u64, count: u64) -> Result<u64, Errno> {
    /// The same number on every architecture (asm-generic/unistd.h).
    const SYS_CACHESTAT: libc::c_long = 451;
    let page = page_bytes() as u64;
    let range = CachestatRange { offset: first * page, len: count * page };
    let mut answer = Cachestat::default();
    // SAFETY: both structures have the layout that the system call expects, and outlive it.
    let status =
        unsafe { libc::syscall(SYS_CACHESTAT, file.as_raw_fd(), &raw const range, &raw mut answer, 0_u32) };
    if status == 0 {
        return Ok(answer.cached);
    }
    let error = std::io::Error::last_os_error();
    Err(Errno::from_io_error(&error).unwrap_or(Errno::NOSYS))
}

fn sample(file: BorrowedFd<'_>, first: u64, count: u64, seed: u64) -> Residency {
    let every = count <= SAMPLE_PAGES;
    let asked = count.min(SAMPLE_PAGES);
    let page = page_bytes() as u64;
    // One page from each of `asked` equal parts of the range.
    let picked = (0..asked).map(|index| {
        let (start, end) = (index * (count / asked), (index + 1) * (count / asked));
        first + start + mix(GAMMA.wrapping_add(seed ^ index)) % (end - start)
    });
    let pages: Result<Vec<bool>, Errno> = picked.map(|number| is_cached(file, number * page)).collect();
    match pages {
        Ok(pages) => {
            let found = Residency::counted(pages, Method::NoWait, false);
            Residency { pages: found.pages.filter(|_| every), ..found }
        }
        Err(_) => Residency { fraction: f64::NAN, pages: None, method: Method::Unavailable, exact: false },
    }
}

fn is_cached(file: BorrowedFd<'_>, offset: u64) -> Result<bool, Errno> {
    let mut byte = [0];
    let before = Usage::of_thread();
    match rustix::io::preadv2(file, &mut [IoSliceMut::new(&mut byte)], offset, ReadWriteFlags::NOWAIT) {
        Ok(_) => Ok(Usage::of_thread().since(before).blocks_read == 0),
        Err(Errno::AGAIN) => Ok(false),
        Err(errno) => Err(errno),
    }
}

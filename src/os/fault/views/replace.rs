//! Replaces an unreadable page of a guarded mapping by zeros, and keeps the page's protection. The signal handler calls
//! this module.
//!
//! | mapping | truncated file: the page lies behind its new end | I/O error |
//! |---|---|---|
//! | read-only | one mapping of zeros, from the file's new end to the mapping's end | one mapping of zeros over the absent pages of a block |
//! | writable | zeros for the untouched pages from the file's new end to the mapping's end | zeros for the page, and for the untouched pages of a block behind it |
//!
//! Page-by-page replacement would take one signal for each page, and would end at the limit of mappings of a process
//! (vm.max_map_count). If each access waits for a server until it fails, it would also take hours. Each further error
//! in a mapping therefore makes the block [`BLOCK_GROWTH`] times as large. However, a page of a writable mapping may
//! hold data that a user wrote, in memory or in swap. Such pages stay ([`crate::os::memory::page_table`]). If the
//! kernel does not give this information, a page of such a mapping is replaced only after it proved unreadable.

use std::ffi::c_int;
use std::ops::Range;
use std::ptr;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use super::table;
use crate::os::memory::page_bytes;
use crate::os::memory::page_table::Pages;

/// Bytes of a read-only mapping that are replaced after its first I/O error. For a writable mapping it is one page.
const BLOCK_BYTES: usize = 64 << 10;
/// Each block is this many times as large as the previous block.
const BLOCK_GROWTH: usize = 16;
/// Maximum number of pages probed on each side of a page to tell whether the file was truncated.
const SAMPLES: usize = 8;
/// Maximum number of pages of a writable mapping probed in one fault. The next fault continues from there.
const MAX_LOOKS: usize = 4096;
/// If an access takes longer than this to fail, the thread waits for a server, and no further page is probed.
const SLOW: Duration = Duration::from_millis(20);
/// Maximum time for probing pages in one fault.
const MAX_PROBING: Duration = Duration::from_millis(200);

/// Replaces the page of `address` by zeros, if it belongs to a guarded mapping. Returns false if the fault is not ours
/// or the page cannot be replaced.
pub(in crate::os::fault) fn replace(address: usize) -> bool {
    let is_guarding = table::IS_GUARDING.load(Ordering::Relaxed);
    let Some(mapping) = table::find(address).filter(|_| is_guarding) else { return false };
    let page = page_bytes();
    let first = address / page * page;
    let start = Instant::now();
    // Another thread has replaced the page, or the storage works again.
    if is_readable(first) && mapping.may_retry() {
        return true;
    }
    let cut_off = if start.elapsed() < SLOW { cut_off(first, &mapping) } else { None };
    let (is_cut_off, (range, spared)) = (cut_off.is_some(), to_replace(first, cut_off, &mapping));
    // Mark the mapping before its zeros exist, because a copying thread checks the mark afterwards.
    let start = range.start.min(spared.start);
    let is_first = mapping.mark_damaged(&(start..spared.end));
    if !map_zeros(&range, &mapping) {
        return false;
    }
    let is_whole = replace_untouched(&spared, &mapping);
    if is_cut_off && is_whole.unwrap_or_else(|| replace_unreadable(spared, &mapping)) {
        mapping.set_tail(start);
    }
    if is_first {
        table::call_hook();
    }
    true
}

/// Returns the range to replace, and a second range in which touched pages stay.
fn to_replace(
    first: usize,
    cut_off: Option<Range<usize>>,
    mapping: &table::FaultingMapping,
) -> (Range<usize>, Range<usize>) {
    let (page, end) = (page_bytes(), mapping.pages.end);
    let one = first..first + page;
    match cut_off {
        Some(all) if mapping.writable => (one, all),
        Some(all) => (all.clone(), all.end..all.end),
        None => {
            let growth = BLOCK_GROWTH.saturating_pow(mapping.count_failure());
            if mapping.writable {
                (one, first + page..first.saturating_add(page.saturating_mul(growth)).min(end))
            } else {
                let absent = absent_around(first, &mapping.pages, BLOCK_BYTES.saturating_mul(growth));
                let behind = absent.end..absent.end;
                (absent, behind)
            }
        }
    }
}

/// Returns the range from the file's new end to the mapping's end, if the failed page lies in it. No probed page
/// of the range is readable. A disk that fails in several places can be mistaken for a truncated file.
fn cut_off(first: usize, mapping: &table::FaultingMapping) -> Option<Range<usize>> {
    let tail = mapping.tail();
    if first >= tail || is_any_readable(first, tail) {
        return None;
    }
    let low = first_unreadable(mapping.pages.start, first);
    Some(if is_any_readable(low, first) { first } else { low }..tail)
}

/// Probes up to [`SAMPLES`] evenly spaced pages after the page `start` and before `end`, beginning with the last.
/// Returns whether any of them is readable.
fn is_any_readable(start: usize, end: usize) -> bool {
    let page = page_bytes();
    let between = (end - start) / page - usize::from(end > start);
    (1..=SAMPLES)
        .rev()
        .map(|part| start + between * part / SAMPLES * page)
        .filter(|&at| at > start)
        .any(is_readable)
}

/// Returns whether the kernel can read a page. rt_sigprocmask(2) copies a set from the page before it rejects the
/// invalid request. If it cannot, it returns EFAULT and raises no signal. It blocks as a fault would.
fn is_readable(page: usize) -> bool {
    const NO_SUCH_REQUEST: c_int = -1;
    const SET_BYTES: usize = 8;
    let set: *const u8 = ptr::with_exposed_provenance(page);
    // SAFETY: the kernel checks the address, and changes nothing for an invalid request.
    let status = unsafe {
        libc::syscall(
            libc::SYS_rt_sigprocmask,
            NO_SUCH_REQUEST,
            set,
            ptr::null_mut::<libc::sigset_t>(),
            SET_BYTES,
        )
    };
    // Only reads errno.
    status == 0 || std::io::Error::last_os_error().raw_os_error() != Some(libc::EFAULT)
}

/// Returns the first unreadable page, which is at or before `known`. It uses binary search, because no later page of a
/// truncated file is readable.
fn first_unreadable(start: usize, known: usize) -> usize {
    let page = page_bytes();
    let (mut readable, mut unreadable) = (start, known);
    if known == start || !is_readable(start) {
        return start;
    }
    while unreadable - readable > page {
        let middle = readable + (unreadable - readable) / page / 2 * page;
        *(if is_readable(middle) { &mut readable } else { &mut unreadable }) = middle;
    }
    unreadable
}

/// Returns `first` and its neighbours in the same block that are not in memory.
fn absent_around(first: usize, mapping: &Range<usize>, block_bytes: usize) -> Range<usize> {
    let page = page_bytes();
    let block = block_bytes.max(page);
    let low = (first / block * block).max(mapping.start);
    let high = (first / block * block).saturating_add(block).min(mapping.end);
    let is_absent = |at: &usize| !is_present(*at);
    let from = (low..first).step_by(page).rev().take_while(is_absent).last().unwrap_or(first);
    let last = (first + page..high).step_by(page).take_while(is_absent).last().unwrap_or(first);
    from..last + page
}

/// Returns whether a page is in memory, or true for every page if the kernel withholds this from the user.
fn is_present(page: usize) -> bool {
    let mut present = 1_u8;
    // SAFETY: the kernel checks the range, and `present` has a byte for its one page.
    unsafe { libc::mincore(ptr::with_exposed_provenance_mut(page), page_bytes(), (&raw mut present).cast()) };
    present & 1 == 1
}

/// Replaces the untouched pages of the range by zeros. Returns whether the kernel allowed every replacement, or `None`
/// if it does not say which pages are untouched.
fn replace_untouched(range: &Range<usize>, mapping: &table::FaultingMapping) -> Option<bool> {
    let page = page_bytes();
    let mut pages = Pages::new()?;
    let mut run = range.start;
    for at in range.clone().step_by(page) {
        if pages.is_touched(at, range.end)? {
            if !map_zeros(&(run..at), mapping) {
                return Some(false);
            }
            run = at + page;
        }
    }
    Some(map_zeros(&(run..range.end), mapping))
}

/// Replaces the unreadable pages of the range by zeros. Returns false if some pages remain to be probed, or the kernel
/// refused.
fn replace_unreadable(range: Range<usize>, mapping: &table::FaultingMapping) -> bool {
    let (page, begun) = (page_bytes(), Instant::now());
    let mut run = range.start;
    for (looks, at) in range.clone().step_by(page).enumerate() {
        let is_enough = looks == MAX_LOOKS || begun.elapsed() > MAX_PROBING;
        if is_enough || is_readable(at) {
            if !map_zeros(&(run..at), mapping) || is_enough {
                return false;
            }
            run = at + page;
        }
    }
    map_zeros(&(run..range.end), mapping)
}

fn map_zeros(range: &Range<usize>, mapping: &table::FaultingMapping) -> bool {
    if range.is_empty() || try_map_zeros(range, mapping.writable) == Ok(()) {
        return true;
    }
    // EINVAL: the mapping has huge pages (hugetlbfs), which cannot be split. A huge page fails as a whole, so we
    // replace all of it.
    for huge in (16..=34).map(|shift| 1_usize << shift).filter(|&huge| huge > page_bytes()) {
        let end = range.end.div_ceil(huge) * huge;
        let wider = range.start / huge * huge..end.min(mapping.pages.end);
        if wider.start < mapping.pages.start {
            return false;
        }
        match try_map_zeros(&wider, mapping.writable) {
            Err(libc::EINVAL) => {}
            Err(_) => return false,
            Ok(()) => {
                mapping.mark_damaged(&wider);
                return true;
            }
        }
    }
    false
}

fn try_map_zeros(range: &Range<usize>, writable: bool) -> Result<(), c_int> {
    let protection = if writable { libc::PROT_READ | libc::PROT_WRITE } else { libc::PROT_READ };
    let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE | libc::MAP_FIXED;
    let address = ptr::with_exposed_provenance_mut(range.start);
    // SAFETY: the pages belong to a guarded mapping that the faulting instruction keeps alive, no Rust reference points
    // to them, and no user wrote to them: the mapping is read-only, or they were unreadable.
    let mapped = unsafe { libc::mmap(address, range.len(), protection, flags, -1, 0) };
    if mapped == address {
        return Ok(());
    }
    // Only reads errno.
    Err(std::io::Error::last_os_error().raw_os_error().unwrap_or(0))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn readability_is_checked_without_a_signal() {
        let page = page_bytes();
        let readable = vec![0_u8; 2 * page];
        assert!(is_readable(readable.as_ptr().expose_provenance()));
        assert!(!is_readable(page)); // below vm.mmap_min_addr
    }
}

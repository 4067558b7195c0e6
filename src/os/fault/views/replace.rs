//! What the handler does to a page of a guarded mapping that cannot be read: zeros take its place, with the protection
//! of what they replace.
//!
//! | mapping | the file was cut: the page lies behind its new end | I/O error |
//! |---|---|---|
//! | read-only | one mapping of zeros, from the new end to the mapping's | one over the absent pages of the block |
//! | writable | those of the next [`MAX_LOOKS`] pages that cannot be read | the page alone |
//!
//! Page by page would take a signal each, and end at the limit of mappings that a process may have
//! (vm.max_map_count). But a page of a writable mapping may hold what a user wrote, in memory or in swap: only one
//! that was seen to be unreadable is replaced there.

use std::ffi::c_int;
use std::ops::Range;
use std::ptr;
use std::time::{Duration, Instant};

use super::table;
use crate::os::memory::page_bytes;

/// Upper bound of what is replaced after an I/O error.
const BLOCK_BYTES: usize = 64 << 10;
/// Pages probed before the file is taken to be truncated.
const SAMPLES: usize = 8;
/// Upper bound of pages of a writable mapping that are probed in one fault. The next fault goes on from there.
const MAX_LOOKS: usize = 4096;
/// Where an access takes longer than this to fail, the thread waits for a server, and nothing is probed that need
/// not be.
const SLOW: Duration = Duration::from_millis(20);

/// Puts zeros where `address` lies, if that belongs to a guarded mapping. Returns false if the fault is not ours, or
/// cannot be helped.
pub(in crate::os::fault) fn replace(address: usize) -> bool {
    let Some(mapping) = table::find(address).filter(|_| table::is_guarding()) else { return false };
    let page = page_bytes();
    let first = address / page * page;
    let start = Instant::now();
    // Another thread was here before, or the storage is back.
    if is_readable(first) && mapping.may_retry() {
        return true;
    }
    let cut_off = if start.elapsed() < SLOW { cut_off(first, &mapping) } else { None };
    let range = match &cut_off {
        Some(all) if !mapping.writable => all.clone(),
        None if !mapping.writable => absent_around(first, &mapping.pages),
        _ => first..first + page,
    };
    // Before there are zeros: a thread that copies looks at the mark afterwards.
    let is_first = mapping.mark_damaged(cut_off.as_ref().unwrap_or(&range));
    if !map_zeros(&range, &mapping) {
        return false;
    }
    if let Some(all) = cut_off
        && (!mapping.writable || replace_unreadable(range.end..all.end, &mapping))
    {
        mapping.set_tail(range.start);
    }
    if is_first {
        table::call_hook();
    }
    true
}

/// Returns the range from the file's new end to the mapping's, if the page that failed lies there: nothing in it can
/// be read. A disk that fails in several places can be taken for that.
fn cut_off(first: usize, mapping: &table::FaultingMapping) -> Option<Range<usize>> {
    let tail = mapping.tail();
    if first >= tail || is_any_readable(first, tail) {
        return None;
    }
    let low = first_unreadable(mapping.pages.start, first);
    Some(if is_any_readable(low, first) { first } else { low }..tail)
}

/// Returns whether one of some pages between the two can be read, the last among them and `start` not.
fn is_any_readable(start: usize, end: usize) -> bool {
    let page = page_bytes();
    let between = (end - start) / page - usize::from(end > start);
    (1..=SAMPLES)
        .rev()
        .map(|part| start + between * part / SAMPLES * page)
        .filter(|&at| at > start)
        .any(is_readable)
}

/// Returns whether the kernel can read a page. rt_sigprocmask(2) copies a set from there before it refuses the
/// question; where it cannot, it returns EFAULT and no signal is raised. It blocks as a fault would.
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
    // Reads errno and no more.
    status == 0 || std::io::Error::last_os_error().raw_os_error() != Some(libc::EFAULT)
}

/// Returns the first page that cannot be read, `known` at most: of a file that was cut, none behind it can.
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

/// Returns `first` and the pages beside it, in its block, that are not in memory.
fn absent_around(first: usize, mapping: &Range<usize>) -> Range<usize> {
    let page = page_bytes();
    let block = BLOCK_BYTES.max(page);
    let low = (first / block * block).max(mapping.start);
    let high = (first / block * block + block).min(mapping.end);
    let is_absent = |at: &usize| !is_present(*at);
    let from = (low..first).step_by(page).rev().take_while(is_absent).last().unwrap_or(first);
    let last = (first + page..high).step_by(page).take_while(is_absent).last().unwrap_or(first);
    from..last + page
}

/// Returns whether a page is in memory; true of all pages if the kernel does not tell this user.
fn is_present(page: usize) -> bool {
    let mut present = 1_u8;
    // SAFETY: the kernel checks the range, and `present` has a byte for its one page.
    unsafe { libc::mincore(ptr::with_exposed_provenance_mut(page), page_bytes(), (&raw mut present).cast()) };
    present & 1 == 1
}

/// Puts zeros over the pages of the range that cannot be read. Returns false if there are more pages to look at.
fn replace_unreadable(range: Range<usize>, mapping: &table::FaultingMapping) -> bool {
    let page = page_bytes();
    let mut run = range.start;
    for (looks, at) in range.clone().step_by(page).enumerate() {
        let is_enough = looks == MAX_LOOKS;
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
    // EINVAL: the mapping is of huge pages (hugetlbfs), and such a page cannot be split. One that fails does so as a
    // whole, so all of it is to go.
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
    // SAFETY: the pages belong to a guarded mapping that the faulting instruction keeps, no Rust reference is on
    // them, and no user wrote to them: the mapping is read-only, or they could not be read.
    let mapped = unsafe { libc::mmap(address, range.len(), protection, flags, -1, 0) };
    if mapped == address {
        return Ok(());
    }
    // Reads errno and no more.
    Err(std::io::Error::last_os_error().raw_os_error().unwrap_or(0))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_can_be_read_is_told_without_a_signal() {
        let page = page_bytes();
        let readable = vec![0_u8; 2 * page];
        assert!(is_readable(readable.as_ptr().expose_provenance()));
        assert!(!is_readable(page)); // below vm.mmap_min_addr
    }
}

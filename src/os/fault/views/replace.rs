//! What the handler does to a page of a guarded mapping that cannot be read: memory of zeros takes its place, with
//! the protection of what it replaces.
//!
//! Where the file was cut, all from its new end to the mapping's is replaced at once: page by page would take a
//! signal each, and end at the limit of mappings a process may have (vm.max_map_count). After an I/O error only the
//! pages around are. What is in memory stays: a user may have written to it.

use std::ffi::c_int;
use std::ops::Range;
use std::ptr;
use std::time::{Duration, Instant};

use super::table;
use crate::os::memory::page_bytes;

/// What is replaced at most after an I/O error.
const BLOCK_BYTES: usize = 64 << 10;
/// So many pages are asked before a file passes for cut.
const SAMPLES: usize = 8;
/// Pages said to be in memory that are looked at in one fault; what is left waits for the next.
const MOST_LOOKS: usize = 4096;
/// Where to fail takes longer, a server is waited for, and nothing is asked that need not be.
const SLOW: Duration = Duration::from_millis(20);

/// Puts zeros where `address` lies, if that belongs to a guarded mapping. False if the fault is not ours, or cannot
/// be helped.
pub(in crate::os::fault) fn replace(address: usize) -> bool {
    let Some(mapping) = table::find(address) else { return false };
    let page = page_bytes();
    let first = address / page * page;
    let start = Instant::now();
    // Another thread was here before, or the storage is back.
    if is_readable(first) && mapping.may_retry() {
        return true;
    }
    let block = absent_around(first, &mapping.pages);
    let cut_off = if start.elapsed() < SLOW { cut_off(first, &mapping) } else { None };
    // Before there are zeros: who copies looks at this afterwards.
    let is_first =
        mapping.mark_damaged(&block) | cut_off.as_ref().is_some_and(|all| mapping.mark_damaged(all));
    if !map_zeros(&block, mapping.writable) {
        return false;
    }
    if let Some(all) = cut_off
        && replace_absent(&all, mapping.writable)
    {
        mapping.set_tail(all.start);
    }
    if is_first {
        table::call_hook();
    }
    true
}

/// All from the file's new end to the mapping's, if the page that failed lies there: nothing behind it can be read.
/// A disk that fails in several places can be taken for that.
fn cut_off(first: usize, mapping: &table::Found) -> Option<Range<usize>> {
    let tail = mapping.tail();
    if first >= tail || is_any_readable(first, tail) {
        return None;
    }
    let low = first_unreadable(mapping.pages.start, first);
    Some(if is_any_readable(low, first) { first } else { low }..tail)
}

/// Of some pages between the two, the last among them; not the one at `start`, which cannot be read.
fn is_any_readable(start: usize, end: usize) -> bool {
    let page = page_bytes();
    let between = (end - start) / page - usize::from(end > start);
    (1..=SAMPLES)
        .rev()
        .map(|part| start + between * part / SAMPLES * page)
        .filter(|&at| at > start)
        .any(is_readable)
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

/// Up to `known`, which cannot be read: of a file that was cut, all from there on cannot.
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

/// The pages beside `first`, and in its block, that are not in memory.
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

/// Whether a page is in memory; true of all pages if the kernel does not tell this user.
fn is_present(page: usize) -> bool {
    let mut present = [1_u8];
    ask_present(page, page_bytes(), &mut present);
    present[0] & 1 == 1
}

fn ask_present(start: usize, len: usize, present: &mut [u8]) {
    debug_assert!(len.div_ceil(page_bytes()) <= present.len());
    // SAFETY: the kernel checks the range, and `present` has a byte for each page of it.
    unsafe { libc::mincore(ptr::with_exposed_provenance_mut(start), len, present.as_mut_ptr().cast()) };
}

/// Puts zeros over the pages of the range that are not in memory. Those that are said to be are looked at: the kernel
/// says it of all to users who may not know, and of what is left of a large folio beyond the end of a file. False if
/// there is more to do.
fn replace_absent(range: &Range<usize>, writable: bool) -> bool {
    // Small: a signal's stack may be.
    const PAGES: usize = 256;
    let page = page_bytes();
    let mut run = range.start;
    let mut looks = 0;
    for chunk in range.clone().step_by(PAGES * page) {
        let mut present = [1; PAGES];
        let bytes = (PAGES * page).min(range.end - chunk);
        ask_present(chunk, bytes, &mut present);
        for (number, _) in present[..bytes / page].iter().enumerate().filter(|(_, byte)| *byte & 1 == 1) {
            let at = chunk + number * page;
            looks += 1;
            let is_enough = looks > MOST_LOOKS;
            if is_enough || is_readable(at) {
                if !map_zeros(&(run..at), writable) || is_enough {
                    return false;
                }
                run = at + page;
            }
        }
    }
    map_zeros(&(run..range.end), writable)
}

fn map_zeros(range: &Range<usize>, writable: bool) -> bool {
    if range.is_empty() {
        return true;
    }
    let protection = if writable { libc::PROT_READ | libc::PROT_WRITE } else { libc::PROT_READ };
    let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE | libc::MAP_FIXED;
    let address = ptr::with_exposed_provenance_mut(range.start);
    // SAFETY: the pages belong to a guarded mapping that the faulting instruction keeps, no Rust reference is on
    // them, and they hold nothing: one could not be read, the others are not in memory or beyond the file's end.
    let mapped = unsafe { libc::mmap(address, range.len(), protection, flags, -1, 0) };
    mapped == address
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

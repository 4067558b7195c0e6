//! What the handler does to a page of a guarded mapping that cannot be read: memory of zeros takes its place, with
//! the protection of what it replaces.
//!
//! Where the file was cut, all from its new end to the mapping's is replaced at once: page by page would take a
//! signal each, and end at the limit of mappings a process may have (vm.max_map_count). After an I/O error only the
//! pages around are. What is in memory stays: a user may have written to it.

use std::ffi::c_int;
use std::ops::Range;
use std::ptr;

use super::guard;
use crate::os;

/// What is replaced at most after an I/O error.
const BLOCK_BYTES: usize = 64 << 10;
/// Where memory and absent pages take turns more often than this, the rest is replaced in one piece.
const MOST_RUNS: usize = 64;

/// Puts zeros where `address` lies, if that belongs to a guarded mapping. False if the fault is not ours, or cannot
/// be helped.
pub(super) fn replace(address: usize) -> bool {
    let Some(mapping) = guard::find(address) else { return false };
    let page = os::page_bytes();
    let first = address / page * page;
    // Another thread was here before, or the storage is back.
    if is_readable(first) && mapping.may_retry() {
        return true;
    }
    let tail = mapping.tail();
    let is_cut = first + page == tail || first < tail && !is_readable(tail - page);
    let range = if is_cut {
        first_unreadable(mapping.pages.start, first)..tail
    } else {
        absent_around(first, &mapping.pages)
    };
    if !replace_absent(&range, first, mapping.writable) {
        return false;
    }
    if is_cut {
        mapping.set_tail(range.start);
    }
    mapping.note_damage(&range);
    true
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
    let page = os::page_bytes();
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
    let page = os::page_bytes();
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
    ask_present(page, os::page_bytes(), &mut present);
    present[0] & 1 == 1
}

fn ask_present(start: usize, len: usize, present: &mut [u8]) {
    debug_assert!(len.div_ceil(os::page_bytes()) <= present.len());
    // SAFETY: the kernel checks the range, and `present` has a byte for each page of it.
    unsafe { libc::mincore(ptr::with_exposed_provenance_mut(start), len, present.as_mut_ptr().cast()) };
}

/// Puts zeros over the pages of the range that are not in memory, of which `first` is one whatever is said.
fn replace_absent(range: &Range<usize>, first: usize, writable: bool) -> bool {
    // Small: a signal's stack may be.
    const PAGES: usize = 256;
    let page = os::page_bytes();
    let mut run = range.start;
    let mut runs = 0;
    if is_present(first) {
        // The kernel does not tell.
        return map_zeros(range.start, range.len(), writable);
    }
    for chunk in range.clone().step_by(PAGES * page) {
        let mut present = [1; PAGES];
        let bytes = (PAGES * page).min(range.end - chunk);
        ask_present(chunk, bytes, &mut present);
        for (number, _) in present[..bytes / page].iter().enumerate().filter(|(_, byte)| *byte & 1 == 1) {
            let at = chunk + number * page;
            if runs == MOST_RUNS {
                return map_zeros(run, range.end - run, writable);
            }
            if run < at {
                if !map_zeros(run, at - run, writable) {
                    return false;
                }
                runs += 1;
            }
            run = at + page;
        }
    }
    run >= range.end || map_zeros(run, range.end - run, writable)
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
    fn what_can_be_read_is_told_without_a_signal() {
        let page = os::page_bytes();
        let readable = vec![0_u8; 2 * page];
        assert!(is_readable(readable.as_ptr().expose_provenance()));
        assert!(!is_readable(page)); // below vm.mmap_min_addr
    }
}

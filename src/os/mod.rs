//! Every system call. Unsafe island 1: pointers into mapped memory stay inside this room, and what
//! leaves it are range-checked copies.
//!
//! **Why no `&[u8]` over a mapping.** A mapped file can be changed or cut by another process at any
//! moment. A Rust slice promises that its bytes do not change, so one over a mapping would be
//! undefined behaviour, and touching a page that the file no longer has raises SIGBUS. [`map::Region`]
//! therefore keeps a raw pointer and gives bytes out by [`fault::copy()`], which survives the signal,
//! or as an address that Python's buffer protocol passes on.
#![allow(unsafe_code)] // Island 1: each block names the check that makes it true.

pub mod advise;
pub mod anonymous;
pub mod beneath;
pub mod errno;
pub mod fault;
pub mod fork;
pub mod fsinfo;
pub mod limits;
pub mod map;
pub mod parts;
pub mod pread;
pub mod residency;
pub mod unmap;
pub mod usage;

use std::mem::MaybeUninit;

/// Bytes of a memory page.
pub fn page_bytes() -> usize {
    rustix::param::page_size()
}

/// Memory that is initialised, as room to write to. Those who get it must only
/// write bytes into it (nothing in this crate writes `MaybeUninit::uninit()`).
pub fn room(bytes: &mut [u8]) -> &mut [MaybeUninit<u8>] {
    let len = bytes.len();
    // SAFETY: the same memory, layout and lifetime; no code of this crate writes `uninit` into room.
    unsafe { std::slice::from_raw_parts_mut(bytes.as_mut_ptr().cast(), len) }
}

/// `[offset, offset + length)` widened to whole pages, as `(start, length)`.
pub fn whole_pages(offset: usize, length: usize) -> (usize, usize) {
    let page = page_bytes();
    let start = offset - offset % page;
    let end = offset.saturating_add(length).div_ceil(page).saturating_mul(page);
    (start, end - start)
}

//! Memory to write to.

use std::mem::MaybeUninit;

/// Memory that is initialised, as room to write to. Those who get it must only
/// write bytes into it (nothing in this crate writes `MaybeUninit::uninit()`).
pub fn room(bytes: &mut [u8]) -> &mut [MaybeUninit<u8>] {
    let len = bytes.len();
    // SAFETY: the same memory, layout and lifetime; no code of this crate writes `uninit` into room.
    unsafe { std::slice::from_raw_parts_mut(bytes.as_mut_ptr().cast(), len) }
}

//! Memory for a copy of a file's bytes, at an address like theirs.

use std::ptr::NonNull;

use super::anonymous::{Anonymous, HUGE_PAGE_BYTES, HugePages};
use super::uninit::Uninit;
use super::zeroed;
use crate::allocate::OutOfMemory;

/// A mapping is page-aligned, so it puts each byte at its offset modulo this. It is the size of a cache line, and of the
/// largest vector register.
const CACHE_LINE_BYTES: usize = 64;

/// Zeros at an address that equals an offset in a file, modulo [`CACHE_LINE_BYTES`].
///
/// Libraries choose kernels by the alignment of their operands, so that alignment changes the order of additions and
/// the last bits of a result. An example is oneMKL:
/// <https://www.intel.com/content/www/us/en/docs/onemkl/developer-guide-macos/2024-0/obtaining-numerically-reproducible-results.html>.
/// A program gets the same bits from a view and from a copy if both are aligned alike.
#[derive(Debug)]
pub struct Placed {
    start: NonNull<u8>,
    len: usize,
    /// Nothing accesses the owner until it is dropped.
    _owner: Owner,
}

#[derive(Debug)]
#[expect(dead_code, reason = "they are only dropped")]
enum Owner {
    Heap(Vec<u8>),
    Pages(Anonymous),
}

// SAFETY: only this value owns the memory, and nothing in it is tied to a thread.
unsafe impl Send for Placed {}
// SAFETY: `&Placed` gives out an address and a length.
unsafe impl Sync for Placed {}

impl Placed {
    /// Allocates `len` bytes for the bytes that begin at `offset` in their file.
    pub fn new(len: usize, offset: u64) -> Result<Self, OutOfMemory> {
        const PURPOSE: &str = "a copy of a tensor";
        let failed = OutOfMemory { bytes: len, purpose: PURPOSE };
        let most = len.checked_add(CACHE_LINE_BYTES - 1).ok_or(failed)?;
        let (base, owner) = if len < HUGE_PAGE_BYTES {
            let mut memory = zeroed(most, PURPOSE)?;
            (memory.as_mut_ptr(), Owner::Heap(memory))
        } else {
            let memory = Anonymous::private(most, HugePages::Auto).map_err(|_| failed)?;
            (memory.as_ptr(), Owner::Pages(memory))
        };
        // Only the remainder counts, and 2^64 is a multiple of the cache line.
        let skipped = (offset as usize).wrapping_sub(base.addr()) % CACHE_LINE_BYTES;
        let start = NonNull::new(base.wrapping_add(skipped)).ok_or(failed)?;
        Ok(Self { start, len, _owner: owner })
    }

    pub fn as_ptr(&self) -> *mut u8 {
        self.start.as_ptr()
    }

    pub fn len(&self) -> usize {
        self.len
    }

    pub fn memory(&mut self) -> Uninit<'_> {
        // SAFETY: `new` allocated `CACHE_LINE_BYTES - 1` bytes more than `len`, and `start` skips at most as many. The
        // memory is initialised, and `self` borrows it exclusively.
        Uninit::of(unsafe { std::slice::from_raw_parts_mut(self.start.as_ptr(), self.len) })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_address_has_the_remainder_of_the_offset() {
        for len in [0, 1, 63, 64, 4096, HUGE_PAGE_BYTES - 1, HUGE_PAGE_BYTES, HUGE_PAGE_BYTES + 1] {
            for offset in [0, 1, 8, 63, 64, 1000, u64::MAX] {
                let mut placed = Placed::new(len, offset).expect("little memory");
                assert_eq!(placed.as_ptr().addr() % CACHE_LINE_BYTES, offset as usize % CACHE_LINE_BYTES);
                assert_eq!((placed.len(), placed.memory().len()), (len, len));
                placed.memory().fill(7);
                // SAFETY: `new` allocated `len` bytes there, and `fill` has written them.
                let byte = |index| unsafe { placed.as_ptr().wrapping_add(index).read() };
                assert!((0..len).all(|index| byte(index) == 7));
            }
        }
    }

    #[test]
    fn a_size_that_no_memory_has_is_an_error() {
        for len in [usize::MAX / 2, usize::MAX - 63, usize::MAX] {
            let failed = Placed::new(len, 8).expect_err("too large");
            assert_eq!(failed.bytes, len);
        }
    }
}

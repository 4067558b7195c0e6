//! Memory for a copy of a file's bytes, at an address like theirs.

use std::mem::MaybeUninit;
use std::ptr::NonNull;

use rustix::mm::{Advice, madvise};

use super::page::page_bytes;
use super::uninit::Uninit;
use crate::allocate::{self, OutOfMemory};

/// A mapping is page-aligned, so it puts each byte at its offset modulo this. It is the size of a cache line, and of the
/// largest vector register.
const CACHE_LINE_BYTES: usize = 64;

/// Minimum size for huge pages. NumPy has the same (`_npy_alloc_cache` in its alloc.c). With them, arrays of 8 MiB are
/// copied 1.7 times as fast, and arrays of 128 MiB 2.2 times.
const LARGE_BYTES: usize = 4 << 20;

/// Memory at an address that equals an offset in a file, modulo [`CACHE_LINE_BYTES`].
///
/// Libraries choose kernels by the alignment of their operands, so that alignment changes the order of additions and
/// the last bits of a result. An example is oneMKL:
/// <https://www.intel.com/content/www/us/en/docs/onemkl/developer-guide-macos/2024-0/obtaining-numerically-reproducible-results.html>.
/// A program gets the same bits from a view and from a copy if both are aligned alike.
#[derive(Debug)]
pub struct Placed {
    start: NonNull<u8>,
    len: usize,
    /// Nothing accesses its memory by it.
    _owner: Vec<MaybeUninit<u8>>,
}

// SAFETY: only this value owns the memory, and nothing in it is tied to a thread.
unsafe impl Send for Placed {}
// SAFETY: `&Placed` gives out an address and a length.
unsafe impl Sync for Placed {}

impl Placed {
    /// Allocates `len` bytes for the bytes that begin at `offset` in their file, and fills them.
    pub fn filled<E: From<OutOfMemory>>(
        len: usize,
        offset: u64,
        fill: impl FnOnce(Uninit<'_>) -> Result<(), E>,
    ) -> Result<Self, E> {
        let placed = Self::new(len, offset)?;
        // SAFETY: `new` allocated `len + CACHE_LINE_BYTES - 1` bytes, and `start` skips less than `CACHE_LINE_BYTES`.
        // No other code knows the address yet.
        let memory = unsafe { std::slice::from_raw_parts_mut(placed.start.as_ptr().cast(), placed.len) };
        fill(Uninit::spare(memory))?;
        Ok(placed)
    }

    fn new(len: usize, offset: u64) -> Result<Self, OutOfMemory> {
        const PURPOSE: &str = "a copy of a tensor";
        let failed = OutOfMemory { bytes: len, purpose: PURPOSE };
        let most = len.checked_add(CACHE_LINE_BYTES - 1).ok_or(failed)?;
        let mut owner = allocate::vec::<MaybeUninit<u8>>(most, PURPOSE).map_err(|_| failed)?;
        let base = owner.as_mut_ptr().cast::<u8>();
        // Only the remainder counts, and 2^64 is a multiple of the cache line.
        let skipped = (offset as usize).wrapping_sub(base.addr()) % CACHE_LINE_BYTES;
        let start = NonNull::new(base.wrapping_add(skipped)).ok_or(failed)?;
        if len >= LARGE_BYTES {
            let before = start.as_ptr().align_offset(page_bytes());
            let pages = start.as_ptr().wrapping_add(before).cast();
            // SAFETY: the range lies in the memory allocated above, and the advice does not change its contents. Best
            // effort: a kernel without huge pages answers EINVAL.
            let _ = unsafe { madvise(pages, len - before, Advice::LinuxHugepage) };
        }
        Ok(Self { start, len, _owner: owner })
    }

    pub fn as_ptr(&self) -> *mut u8 {
        self.start.as_ptr()
    }

    pub fn len(&self) -> usize {
        self.len
    }

    /// Returns whether freeing it may take long, because the allocator unmaps it.
    pub fn is_large(&self) -> bool {
        self.len >= LARGE_BYTES
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_address_has_the_remainder_of_the_offset() {
        const SIZES: [usize; 8] = [0, 1, 63, 64, 4096, LARGE_BYTES - 1, LARGE_BYTES, 33 << 20];
        for len in SIZES {
            for offset in [0, 1, 8, 63, 64, 1000, u64::MAX] {
                let fill = |mut memory: Uninit<'_>| -> Result<(), OutOfMemory> {
                    assert_eq!(memory.len(), len);
                    memory.fill(7);
                    Ok(())
                };
                let placed = Placed::filled(len, offset, fill).expect("little memory");
                assert_eq!(placed.as_ptr().addr() % CACHE_LINE_BYTES, offset as usize % CACHE_LINE_BYTES);
                assert_eq!((placed.len(), placed.is_large()), (len, len >= LARGE_BYTES));
                // SAFETY: `filled` allocated `len` bytes there, and the closure has written them.
                let byte = |index| unsafe { placed.as_ptr().wrapping_add(index).read() };
                assert!((0..len).step_by(4093).chain(len.checked_sub(1)).all(|index| byte(index) == 7));
            }
        }
    }

    #[test]
    fn a_size_that_no_memory_has_is_an_error() {
        for len in [usize::MAX / 2, usize::MAX - 63, usize::MAX] {
            let failed = Placed::filled(len, 8, |_| Ok::<_, OutOfMemory>(())).expect_err("too large");
            assert_eq!(failed.bytes, len);
        }
    }
}

//! Which pages of this process were touched: they are in memory, or what was written to them is in swap.
//!
//! From `/proc/self/pagemap` (<https://docs.kernel.org/admin-guide/mm/pagemap.html>): a page without an entry in the page
//! table was never used. The signal handler calls this: it only opens, reads and closes.

use std::ffi::c_int;

use crate::os::memory::page_bytes;

/// Bits of an entry: in memory, in swap.
const TOUCHED: u64 = 0b11 << 62;
/// Entries that are read at a time, on the stack of the handler.
const ENTRIES: usize = 64;

/// Entries of the page table, read in blocks.
#[derive(Debug)]
pub struct Pages {
    file: c_int,
    entries: [u64; ENTRIES],
    /// The number of the page of the first entry.
    first: usize,
    count: usize,
}

impl Pages {
    /// `None` if the kernel does not show them.
    pub fn new() -> Option<Self> {
        // SAFETY: the path is a C string.
        let file = unsafe { libc::open(c"/proc/self/pagemap".as_ptr(), libc::O_RDONLY | libc::O_CLOEXEC) };
        (file >= 0).then_some(Self { file, entries: [0; ENTRIES], first: 0, count: 0 })
    }

    /// Returns whether the page at an address was touched; `None` if the kernel does not tell. Entries up to `end` are read
    /// ahead.
    pub fn is_touched(&mut self, address: usize, end: usize) -> Option<bool> {
        let number = address / page_bytes();
        if !(self.first..self.first + self.count).contains(&number) {
            self.first = number;
            self.count = end.div_ceil(page_bytes()).checked_sub(number)?.min(ENTRIES);
            let bytes = self.count * size_of::<u64>();
            let offset = libc::off_t::try_from(number.checked_mul(size_of::<u64>())?).ok()?;
            // SAFETY: `count` is at most the length of `entries`.
            let read = unsafe { libc::pread(self.file, self.entries.as_mut_ptr().cast(), bytes, offset) };
            if read != bytes.cast_signed() {
                return None;
            }
        }
        Some(self.entries.get(number - self.first)? & TOUCHED != 0)
    }
}

impl Drop for Pages {
    fn drop(&mut self) {
        // SAFETY: the descriptor is this value's own.
        unsafe { libc::close(self.file) };
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use memmap2::MmapMut;

    #[test]
    fn pages_that_were_written_are_touched_and_others_are_not() {
        let page = page_bytes();
        let mut memory = MmapMut::map_anon(200 * page).expect("memory");
        // A page that is not written could be part of a huge one, together with a neighbour of this mapping.
        memory.advise(memmap2::Advice::NoHugePage).expect("advice");
        for number in [0, 63, 64, 199] {
            memory[number * page] = 1;
        }
        let start = memory.as_ptr().expose_provenance();
        let mut pages = Pages::new().expect("the kernel tells");
        let found: Vec<_> = (0..200)
            .filter(|number| pages.is_touched(start + number * page, start + 200 * page) == Some(true))
            .collect();
        assert_eq!(found, [0, 63, 64, 199]);
    }
}

//! The page table of this process: which pages were touched, and which of them were written.
//!
//! The information comes from `/proc/self/pagemap` (<https://docs.kernel.org/admin-guide/mm/pagemap.html>). A page
//! without an entry in the page table was never used. The signal handler calls this module, which only opens, reads and
//! closes.

use std::ffi::c_int;

use super::page_bytes;

/// Bits of an entry: the page is in memory, or in swap.
const TOUCHED: u64 = 0b11 << 62;
/// Bit of an entry: the page belongs to a file, or is shared anonymous memory.
const OF_FILE: u64 = 1 << 61;

/// Number of entries read at a time, on the stack of the handler.
const ENTRIES: usize = 64;

/// Entries of the page table, read in blocks.
#[derive(Debug)]
pub struct Pages {
    file: c_int,
    entries: [u64; ENTRIES],
    /// The page number of the first entry.
    first: usize,
    count: usize,
}

impl Pages {
    /// Opens the page table. `None` if the kernel does not show it.
    pub fn new() -> Option<Self> {
        // SAFETY: the path is a C string.
        let file = unsafe { libc::open(c"/proc/self/pagemap".as_ptr(), libc::O_RDONLY | libc::O_CLOEXEC) };
        (file >= 0).then_some(Self { file, entries: [0; ENTRIES], first: 0, count: 0 })
    }

    /// Returns whether the page at an address was touched, so that it is in memory or in swap. `None` if the kernel
    /// does not say. Entries up to `end` are read ahead.
    pub fn is_touched(&mut self, address: usize, end: usize) -> Option<bool> {
        Some(self.entry(address, end)? & TOUCHED != 0)
    }

    /// Returns whether the page at an address in a private file mapping was written, so that memory of this process
    /// replaces the file's page. `None` if the kernel does not say.
    pub fn is_written(&mut self, address: usize) -> Option<bool> {
        let entry = self.entry(address, address + 1)?;
        Some(entry & TOUCHED != 0 && entry & OF_FILE == 0)
    }

    fn entry(&mut self, address: usize, end: usize) -> Option<u64> {
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
        self.entries.get(number - self.first).copied()
    }
}

impl Drop for Pages {
    fn drop(&mut self) {
        // SAFETY: this value owns the descriptor.
        unsafe { libc::close(self.file) };
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use memmap2::MmapMut;

    #[test]
    fn only_written_pages_are_touched() {
        let page = page_bytes();
        let mut memory = MmapMut::map_anon(200 * page).expect("memory");
        // Otherwise an unwritten page could be part of a huge page, together with a neighbour of this mapping.
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

    #[test]
    fn written_pages_of_a_private_mapping_differ_from_file_pages() {
        let page = page_bytes();
        let file = tempfile::tempfile().expect("a file");
        file.set_len(100 * page as u64).expect("a length");
        // SAFETY: nothing changes the file.
        let mut memory = unsafe { memmap2::MmapOptions::new().map_copy(&file) }.expect("a mapping");
        let start = memory.as_ptr().expose_provenance();
        assert_eq!(memory.iter().map(|&byte| usize::from(byte)).sum::<usize>(), 0);
        memory[70 * page + 1] = 1;
        let mut pages = Pages::new().expect("the kernel tells");
        let written: Vec<_> =
            (0..100).filter(|number| pages.is_written(start + number * page + 5) == Some(true)).collect();
        assert_eq!(written, [70]);
    }
}

//! Reads a cached run of bytes with several threads, because one thread does not use the memory's full bandwidth.

use std::ops::Range;
use std::sync::{Mutex, PoisonError};

use crate::error::Result;
use crate::mapped_file::{Opened, page_cache};
use crate::os::memory::Uninit;
use crate::os::process::parallel::in_parallel;

/// Bytes that a thread reads at a time.
const CHUNK_BYTES: usize = 1 << 20;

/// Returns whether a range of the file is in the page cache and long enough for several threads.
pub fn is_cached_run(opened: &Opened, range: &Range<u64>) -> bool {
    let len = range.end - range.start;
    len > CHUNK_BYTES as u64
        && opened.reads_from_cache()
        && page_cache::is_resident(opened, range.start, len) == Some(true)
}

/// Fills `out` with the bytes from `offset` of the file on, with up to `threads` threads.
pub fn fill_run(opened: &Opened, offset: u64, out: Uninit<'_>, threads: usize) -> Result<()> {
    let reads = opened.exact_reader();
    let chunks: Vec<_> = out.chunks(CHUNK_BYTES).map(|chunk| Mutex::new(Some(chunk))).collect();
    in_parallel(chunks.len(), threads, |index| {
        let chunk = chunks[index].lock().unwrap_or_else(PoisonError::into_inner).take();
        chunk.map_or(Ok(()), |memory| reads.read_into(offset + (index * CHUNK_BYTES) as u64, memory))
    })?;
    Ok(())
}

//! Reads one piece of a file, through the page cache or past it.

use std::sync::Arc;

use crate::error::Result;
use crate::fetch::crew::KeepGoing;
use crate::mapped_file::{Opened, page_cache};
use crate::os::memory::Uninit;
use crate::slicing::{fill, plan_for};

use super::options::CacheUse;
use super::plan::ReadPiece;

/// Opens the file with a given number.
pub type Files = dyn Fn(usize) -> Result<Arc<Opened>> + Send + Sync;

/// Fills `memory` with a planned piece, in the calling thread.
pub fn read_piece(
    opened: &Opened,
    piece: &ReadPiece,
    mut memory: Uninit<'_>,
    cache: CacheUse,
    keep_going: &mut KeepGoing<'_>,
) -> Result<()> {
    match piece {
        ReadPiece::Run { offset } => {
            let (mut len, mut good) = (memory.len() as u64, 0);
            if cache == CacheUse::Bypass {
                // Whole pages may reach past the end of the file.
                len = len.min(opened.size().saturating_sub(*offset));
                good = (opened.read_directly(*offset, memory.reborrow()) as u64).min(len);
            }
            // Reads the remaining bytes after a direct read. If the direct read failed, this read reports the cause.
            let rest = memory.range(good as usize..len as usize);
            let read = || opened.exact_reader().read_into(offset + good, rest);
            leaving_cache(opened, offset + good, len - good, cache, read)
        }
        ReadPiece::Part { data_offset, selection } => {
            // One thread is enough: other threads read other pieces.
            let plan = plan_for(opened, *data_offset, selection.clone(), 1);
            let (start, span) = selection.extent();
            let read = || fill(opened, *data_offset, &plan, memory, 1, keep_going);
            leaving_cache(opened, data_offset + start, span, cache, read)
        }
    }
}

/// Reads a range of a file through the page cache. Unless the bytes are to stay, drops the pages that were not cached
/// before.
fn leaving_cache(
    opened: &Opened,
    offset: u64,
    len: u64,
    cache: CacheUse,
    read: impl FnOnce() -> Result<()>,
) -> Result<()> {
    if len == 0 {
        return Ok(());
    }
    if cache == CacheUse::Fill {
        opened.offer();
        return read();
    }
    let found = page_cache::resident_pages(opened, offset, len);
    read()?;
    page_cache::restore(opened, offset, len, found.as_ref());
    Ok(())
}

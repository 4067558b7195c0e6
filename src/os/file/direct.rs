//! Descriptors whose reads go past the page cache (`O_DIRECT`, open(2)).

use std::os::fd::{AsRawFd, BorrowedFd, OwnedFd};

use rustix::fs::{AtFlags, Mode, OFlags, StatxFlags};
use rustix::io::Errno;

use super::open::retry;

/// File offsets, lengths and addresses are multiples of this number. It suffices for every block device with blocks of
/// up to 4 KiB.
pub const ALIGN_BYTES: usize = 4096;

/// Opens the file behind a descriptor once more, for direct reads. Fails with EINVAL if its file system has no direct
/// reads, or needs a coarser alignment than [`ALIGN_BYTES`].
pub fn open_direct(file: BorrowedFd<'_>) -> Result<OwnedFd, Errno> {
    let link = format!("/proc/self/fd/{}", file.as_raw_fd());
    let flags = OFlags::RDONLY | OFlags::CLOEXEC | OFlags::NONBLOCK | OFlags::NOCTTY | OFlags::DIRECT;
    let direct = retry(|| rustix::fs::open(&link, flags, Mode::empty()))?;
    // Before Linux 6.1, and on file systems without this information, only the first read shows whether the alignment
    // suffices.
    let told = retry(|| rustix::fs::statx(&direct, c"", AtFlags::EMPTY_PATH, StatxFlags::DIOALIGN))
        .ok()
        .filter(|found| found.stx_mask & StatxFlags::DIOALIGN.bits() != 0);
    let suffices = |wanted: u32| wanted != 0 && ALIGN_BYTES.is_multiple_of(wanted as usize);
    match told {
        Some(found) if !suffices(found.stx_dio_mem_align) || !suffices(found.stx_dio_offset_align) => {
            Err(Errno::INVAL)
        }
        _ => Ok(direct),
    }
}

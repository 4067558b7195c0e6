//! Positioned reads.

use std::mem::MaybeUninit;
use std::os::fd::{AsRawFd, BorrowedFd};

use rustix::io::Errno;

use super::open::retry;

/// Why a positioned read ended before its range did.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Short {
    EndOfFile,
    Errno(Errno),
}

/// Fills `out` from `offset`. On failure says how many bytes are good, and why no more came.
pub fn read_at(file: BorrowedFd<'_>, offset: u64, out: &mut [MaybeUninit<u8>]) -> Result<(), (usize, Short)> {
    let mut done = 0;
    while done < out.len() {
        let Some(at) = offset.checked_add(done as u64) else {
            return Err((done, Short::Errno(Errno::OVERFLOW)));
        };
        let rest = &mut out[done..];
        match retry(|| rustix::io::pread(file, &mut *rest, at).map(|(filled, _)| filled.len())) {
            Ok(0) => return Err((done, Short::EndOfFile)),
            Ok(count) => done += count,
            Err(errno) => return Err((done, Short::Errno(errno))),
        }
    }
    Ok(())
}

/// Fills two buffers with what follows each other in the file, by one call of preadv(2): one request to a
/// server, not two. Says how many bytes are good; 0 also for an error, which [`read_at`] will tell.
pub fn read_two_at(
    file: BorrowedFd<'_>,
    offset: u64,
    first: &mut [MaybeUninit<u8>],
    second: &mut [MaybeUninit<u8>],
) -> usize {
    let Ok(offset) = libc::off_t::try_from(offset) else { return 0 };
    let buffers = [first, second]
        .map(|buffer| libc::iovec { iov_base: buffer.as_mut_ptr().cast(), iov_len: buffer.len() });
    // SAFETY: each buffer is borrowed mutably and as long as its iovec says.
    let count = unsafe { libc::preadv(file.as_raw_fd(), buffers.as_ptr(), 2, offset) };
    usize::try_from(count).unwrap_or(0)
}

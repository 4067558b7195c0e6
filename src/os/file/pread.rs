//! Positioned reads.

use std::os::fd::BorrowedFd;

use rustix::io::Errno;

use super::open::retry;
use crate::os::memory::Uninit;

/// Why a positioned read ended before its range did.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Short {
    EndOfFile,
    Errno(Errno),
}

/// Fills `out` with the file's bytes from `offset`. Returns whether a page of them [ends in zeros](Uninit::has_zero_tail);
/// on failure how many are good, and why no more came.
pub fn read_at(file: BorrowedFd<'_>, offset: u64, mut out: Uninit<'_>) -> Result<bool, (usize, Short)> {
    let mut done = 0;
    while done < out.len() {
        let Some(at) = offset.checked_add(done as u64) else {
            return Err((done, Short::Errno(Errno::OVERFLOW)));
        };
        // SAFETY: pread(2) writes file bytes alone.
        let rest = unsafe { &mut out.as_maybe_uninit()[done..] };
        match retry(|| rustix::io::pread(file, &mut *rest, at).map(|(filled, _)| filled.len())) {
            Ok(0) => return Err((done, Short::EndOfFile)),
            Ok(count) => done += count,
            Err(errno) => return Err((done, Short::Errno(errno))),
        }
    }
    // SAFETY: as many bytes were written as it has.
    Ok(unsafe { out.has_zero_tail(offset) })
}

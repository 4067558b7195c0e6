//! Positioned reads.

use std::os::fd::BorrowedFd;

use rustix::io::Errno;

use super::open::retry;
use crate::os::memory::Uninit;

/// The reason why a positioned read stopped early.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Short {
    EndOfFile,
    Errno(Errno),
}

/// Fills `out` with the file's bytes from `offset`. Returns whether one of its pages [ends in
/// zeros](Uninit::has_zero_tail). An error has the number of good bytes, and the reason for the stop.
pub fn read_at(file: BorrowedFd<'_>, offset: u64, mut out: Uninit<'_>) -> Result<bool, (usize, Short)> {
    let mut done = 0;
    while done < out.len() {
        let Some(at) = offset.checked_add(done as u64) else {
            return Err((done, Short::Errno(Errno::OVERFLOW)));
        };
        // SAFETY: pread(2) writes only file bytes.
        let rest = unsafe { &mut out.as_maybe_uninit()[done..] };
        match retry(|| rustix::io::pread(file, &mut *rest, at).map(|(filled, _)| filled.len())) {
            Ok(0) => return Err((done, Short::EndOfFile)),
            Ok(count) => done += count,
            Err(errno) => return Err((done, Short::Errno(errno))),
        }
    }
    // SAFETY: the loop wrote all of its bytes.
    Ok(unsafe { out.has_zero_tail(offset) })
}

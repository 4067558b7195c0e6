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

/// Fills `out` with the file's bytes from `offset`. On failure returns how many of them are good, and why no more came.
pub fn read_at(file: BorrowedFd<'_>, offset: u64, mut out: Uninit<'_>) -> Result<(), (usize, Short)> {
    // SAFETY: pread(2) writes file bytes alone.
    let out = unsafe { out.as_maybe_uninit() };
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

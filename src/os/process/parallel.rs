//! Makes the same call for many files at once.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, PoisonError};
use std::thread::Builder;

use crate::error::Result;

use super::thread;

/// Number of files that justify one more thread where opening costs processor time.
pub const FILES_PER_THREAD: usize = 4;

/// Calls `call` for each number below `count`, in `threads` threads including the caller, and returns the results in
/// order. If calls fail, it returns the error of the smallest failed number: threads take numbers in order, so all
/// smaller numbers were tried.
pub fn in_parallel<T: Send>(
    count: usize,
    threads: usize,
    call: impl Fn(usize) -> Result<T> + Sync,
) -> Result<Vec<T>> {
    in_parallel_while(count, threads, || Ok(()), call)
}

/// Same as [`in_parallel`], but ends when `check` fails. The calling thread calls `check` before each of its calls.
pub fn in_parallel_while<T: Send>(
    count: usize,
    threads: usize,
    mut check: impl FnMut() -> Result<()>,
    call: impl Fn(usize) -> Result<T> + Sync,
) -> Result<Vec<T>> {
    if threads.min(count) <= 1 {
        return (0..count).map(|index| check().and_then(|()| call(index))).collect();
    }
    let next = AtomicUsize::new(0);
    let done = Mutex::new(Vec::with_capacity(count));
    let work = |check: &mut dyn FnMut() -> Result<()>| {
        let mut own = Vec::new();
        loop {
            let index = next.fetch_add(1, Ordering::Relaxed);
            if index >= count {
                break;
            }
            let result = check().and_then(|()| call(index));
            if result.is_err() {
                next.store(count, Ordering::Relaxed);
            }
            own.push((index, result));
        }
        done.lock().unwrap_or_else(PoisonError::into_inner).append(&mut own);
    };
    std::thread::scope(|scope| {
        // If threads cannot be started, the remaining threads do all the work.
        for _ in 1..threads.min(count) {
            let _ = thread::start_scoped(Builder::new(), scope, || work(&mut || Ok(())));
        }
        work(&mut check);
    });
    let mut done = done.into_inner().unwrap_or_else(PoisonError::into_inner);
    done.sort_unstable_by_key(|(index, _)| *index);
    done.into_iter().map(|(_, result)| result).collect()
}

//! Starts this library's threads, with signals blocked, and only if the address space has room for them.
//!
//! A program may block a signal, for example SIGUSR1, and wait for it with sigwait(3). The kernel delivers a signal to any
//! thread that does not block it. In one of our threads the default action would end the process.
//!
//! Under RLIMIT_AS, threads must not take the last bytes of the address space. The standard library, and glibc in the
//! new thread, allocate a few hundred bytes for each thread, and end the process if that fails.

use std::io;
use std::mem::MaybeUninit;
use std::ptr;
use std::thread::{Builder, Scope};

use memmap2::MmapOptions;
use rustix::process::{Resource, getrlimit};

/// The thread's own instructions raise these signals. If they are blocked, the kernel kills the process.
const SYNCHRONOUS: [libc::c_int; 6] =
    [libc::SIGBUS, libc::SIGFPE, libc::SIGILL, libc::SIGSEGV, libc::SIGSYS, libc::SIGTRAP];

/// Address space that must be free for a thread to start: its stack, of at most 2 MiB, and as much again for small
/// allocations, including those of threads that start at the same time.
const ROOM_BYTES: usize = 4 << 20;

/// Starts a detached thread.
pub fn start(thread: Builder, work: impl FnOnce() + Send + 'static) -> io::Result<()> {
    check_room()?;
    with_signals_blocked(|| thread.spawn(work)).map(drop)
}

/// Starts a thread that the scope joins.
pub fn start_scoped<'scope>(
    thread: Builder,
    scope: &'scope Scope<'scope, '_>,
    work: impl FnOnce() + Send + 'scope,
) -> io::Result<()> {
    check_room()?;
    with_signals_blocked(|| thread.spawn_scoped(scope, work)).map(drop)
}

/// Returns an error if a limit on the address space leaves too little for a thread.
fn check_room() -> io::Result<()> {
    match getrlimit(Resource::As).current {
        Some(_) => MmapOptions::new().len(ROOM_BYTES).map_anon().map(drop),
        None => Ok(()),
    }
}

/// Calls `start` with signals blocked in this thread. A new thread inherits the mask.
fn with_signals_blocked<T>(start: impl FnOnce() -> T) -> T {
    let _restored = Restored(exchange(&all_but_synchronous()));
    start()
}

/// A mask to restore, also after a panic.
struct Restored(libc::sigset_t);

impl Drop for Restored {
    fn drop(&mut self) {
        exchange(&self.0);
    }
}

fn all_but_synchronous() -> libc::sigset_t {
    let mut signals = MaybeUninit::<libc::sigset_t>::zeroed();
    // SAFETY: the pointer leads to a live sigset_t, which the call fills.
    unsafe { libc::sigfillset(signals.as_mut_ptr()) };
    for signal in SYNCHRONOUS {
        // SAFETY: the set was filled above.
        unsafe { libc::sigdelset(signals.as_mut_ptr(), signal) };
    }
    // SAFETY: filled by sigfillset above.
    unsafe { signals.assume_init() }
}

/// Sets the signal mask of this thread and returns the previous one.
fn exchange(mask: &libc::sigset_t) -> libc::sigset_t {
    let mut before = MaybeUninit::<libc::sigset_t>::zeroed();
    // SAFETY: both sets are live, and SIG_SETMASK is a valid request, so the call cannot fail.
    unsafe { libc::pthread_sigmask(libc::SIG_SETMASK, ptr::from_ref(mask), before.as_mut_ptr()) };
    // SAFETY: filled by the call; all zeros is also a valid set.
    unsafe { before.assume_init() }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc;

    use super::*;

    /// The signals that this thread blocks, as a bit mask.
    fn blocked() -> u64 {
        let status = std::fs::read_to_string("/proc/thread-self/status").expect("of this thread");
        let line =
            status.lines().find_map(|line| line.strip_prefix("SigBlk:")).expect("a line of blocked signals");
        u64::from_str_radix(line.trim(), 16).expect("a number")
    }

    fn is_in(mask: u64, signal: libc::c_int) -> bool {
        mask >> (signal - 1) & 1 == 1
    }

    fn are_right(mask: u64) -> bool {
        let asynchronous = [libc::SIGUSR1, libc::SIGINT, libc::SIGTERM, libc::SIGPROF];
        asynchronous.iter().all(|&signal| is_in(mask, signal))
            && SYNCHRONOUS.iter().all(|&signal| !is_in(mask, signal))
    }

    #[test]
    fn a_thread_starts_with_signals_blocked_and_its_starter_keeps_its_mask() {
        let (before, (send, receive)) = (blocked(), mpsc::channel());
        let sender = send.clone();
        start(Builder::new(), move || sender.send(blocked()).expect("awaited")).expect("started");
        std::thread::scope(|scope| {
            start_scoped(Builder::new(), scope, move || send.send(blocked()).expect("awaited"))
                .expect("started");
        });
        assert!(receive.iter().take(2).all(are_right));
        assert_eq!(blocked(), before);
    }
}

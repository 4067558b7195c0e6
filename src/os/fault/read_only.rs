//! Writes to read-only mappings that we handed out. They end the process, as they would without us. First, however, the
//! SIGSEGV handler writes the file's name, the reason and a remedy to standard error.
//!
//! The handler steps aside at the first SIGSEGV, whatever its cause: it restores its predecessor, and the instruction
//! faults again. It never moves in front of a handler that was installed later. If that handler does not pass faults
//! on, no message names the file. For example, `faulthandler`, enabled after the memory was handed out, passes on a
//! signal without an address.

use std::ffi::{c_int, c_void};
use std::os::unix::ffi::OsStrExt;
use std::ptr;
use std::sync::atomic::{AtomicBool, AtomicPtr, Ordering};

use super::chain::empty_action;
use super::{install, views};

/// The page exists, but its protection forbids the access (sigaction(2); the crate libc lacks this constant).
const SEGV_ACCERR: c_int = 2;

static IS_CLAIMED: AtomicBool = AtomicBool::new(false);

/// The previous action: null, or leaked, because the handler may be reading it.
static PREDECESSOR: AtomicPtr<libc::sigaction> = AtomicPtr::new(ptr::null_mut());

/// Installs the handler once. Call it when memory with read-only pages is handed out.
pub fn tell_of_writes() {
    if !install::is_enabled() || IS_CLAIMED.swap(true, Ordering::Relaxed) {
        return;
    }
    // Store the predecessor before the handler that reads it.
    PREDECESSOR.store(Box::into_raw(Box::new(exchange(None))), Ordering::Release);
    let mut ours = empty_action();
    ours.sa_sigaction = on_sigsegv as extern "C" fn(c_int, *mut libc::siginfo_t, *mut c_void) as usize;
    // NODEFER: the handler raises again a signal that another process sent.
    ours.sa_flags = libc::SA_SIGINFO | libc::SA_ONSTACK | libc::SA_NODEFER;
    exchange(Some(&ours));
}

extern "C" fn on_sigsegv(_number: c_int, info: *mut libc::siginfo_t, _context: *mut c_void) {
    // SAFETY: the kernel passes a valid siginfo to a SA_SIGINFO handler.
    let cause = unsafe { &*info };

    if cause.si_code == SEGV_ACCERR {
        // SAFETY: a fault comes with its address.
        tell(unsafe { cause.si_addr() }.addr());
    }
    // SAFETY: null, or a leaked box that nothing writes to.
    let predecessor = unsafe { PREDECESSOR.load(Ordering::Acquire).as_ref() };
    exchange(Some(predecessor.unwrap_or(&empty_action())));
    let is_fault = cause.si_code > 0;
    if !is_fault {
        // SAFETY: takes a signal number; SA_NODEFER left SIGSEGV unblocked.
        unsafe { libc::raise(libc::SIGSEGV) };
    }
}

/// Names the file of the read-only mapping at this address on standard error. The faulting instruction uses memory that
/// was handed out, so this thread holds neither our locks nor malloc's.
fn tell(address: usize) {
    let put = |text: &[u8]| {
        // SAFETY: `text` is live and has this length.
        unsafe { libc::write(libc::STDERR_FILENO, text.as_ptr().cast(), text.len()) };
    };
    views::with_path_of_read_only(address, |path| {
        put(b"pagestream: a write to read-only memory of ");
        put(path.as_os_str().as_bytes());
        put(b" ends the process. Its pages are read-only because mode \"shared\" was asked for, or because the kernel refused \
            copy-on-write pages. Open the file without that mode, or write to a copy of the array.\n");
    });
}

/// Sets the action `new`, if given, and returns the previous action (sigaction(2)).
fn exchange(new: Option<&libc::sigaction>) -> libc::sigaction {
    let mut old = empty_action();
    let new = new.map_or(ptr::null(), ptr::from_ref);
    // SAFETY: `new` is null or a valid action, and `old` is valid for writes. If the call fails, `old` keeps the
    // default action; for a valid signal the call does not fail.
    unsafe { libc::sigaction(libc::SIGSEGV, new, &raw mut old) };
    old
}

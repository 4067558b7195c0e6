//! Writes to read-only mappings that were handed out. They end the process, as without us, but not without a word: the
//! handler of SIGSEGV writes the file's name, the reason and a remedy to standard error first.
//!
//! The handler steps aside at the first SIGSEGV, whatever caused it: it puts its predecessor back, and the instruction
//! faults again. It never goes in front of a handler that came later. If that one does not pass faults on (`faulthandler`,
//! enabled after the memory was handed out, passes on a signal without an address), no file is named.

use std::ffi::{c_int, c_void};
use std::os::unix::ffi::OsStrExt;
use std::ptr;
use std::sync::atomic::{AtomicBool, AtomicPtr, Ordering};

use super::chain::empty_action;
use super::{install, views};

/// The page is there, and its protection forbids the access (sigaction(2); the crate libc lacks it).
const SEGV_ACCERR: c_int = 2;

static IS_CLAIMED: AtomicBool = AtomicBool::new(false);

/// The action that stood before ours: null, or leaked, because the handler may be reading it.
static PREDECESSOR: AtomicPtr<libc::sigaction> = AtomicPtr::new(ptr::null_mut());

/// Installs the handler, once. To be called when memory is handed out whose pages are read-only.
pub fn tell_of_writes() {
    if !install::is_enabled() || IS_CLAIMED.swap(true, Ordering::Relaxed) {
        return;
    }
    // First the predecessor, then the handler that reads it.
    PREDECESSOR.store(Box::into_raw(Box::new(exchange(None))), Ordering::Release);
    let mut ours = empty_action();
    ours.sa_sigaction = on_sigsegv as extern "C" fn(c_int, *mut libc::siginfo_t, *mut c_void) as usize;
    // NODEFER: a signal that was sent by hand is sent again inside the handler.
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

/// Writes to standard error which file the read-only mapping with this address is of. The faulting instruction uses memory
/// that was handed out, so this thread holds no lock of ours and none of malloc.
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

/// sigaction(2): sets `new`, if there is one, and returns what stood there.
fn exchange(new: Option<&libc::sigaction>) -> libc::sigaction {
    let mut old = empty_action();
    let new = new.map_or(ptr::null(), ptr::from_ref);
    // SAFETY: `new` is null or a valid action, and `old` is valid for writes. The default action stands in `old` if the
    // call fails, which it does for no valid signal.
    unsafe { libc::sigaction(libc::SIGSEGV, new, &raw mut old) };
    old
}

//! The SIGBUS handler. `mod.rs` states its rules and draws the path of a signal.

use std::ffi::{c_int, c_void};

use super::chain::{ENTRIES, Handler, Signal, chain};
use super::{copy, views};

/// The handler, once for each entry. Each entry needs a function of its own because other libraries keep us as *their*
/// predecessor and restore us when they leave (for example `faulthandler.disable()`). They restore the entry that they
/// found, and that entry still has the right predecessor.
pub(super) const HANDLERS: [Handler; ENTRIES] = [
    on_sigbus::<0>,
    on_sigbus::<1>,
    on_sigbus::<2>,
    on_sigbus::<3>,
    on_sigbus::<4>,
    on_sigbus::<5>,
    on_sigbus::<6>,
    on_sigbus::<7>,
];

/// `si_errno` of the signal that wakes a thread from a system call. The kernel never sets this value itself.
pub(super) const WAKE_MARK: c_int = 0x7061_6765;

extern "C" fn on_sigbus<const ENTRY: usize>(number: c_int, info: *mut libc::siginfo_t, context: *mut c_void) {
    // SAFETY: the kernel passes a valid siginfo to a SA_SIGINFO handler.
    let cause = unsafe { &*info };
    if cause.si_code == libc::SI_QUEUE && cause.si_errno == WAKE_MARK {
        return;
    }
    // BUS_MCEERR_AO reports broken memory that no instruction of this thread has accessed.
    let is_fault = cause.si_code > 0 && cause.si_code != libc::BUS_MCEERR_AO;
    if is_fault && redirect(context.cast()) {
        return;
    }
    // SAFETY: always valid for the calling thread.
    let errno = unsafe { libc::__errno_location() };
    // SAFETY: as above.
    let saved = unsafe { *errno };
    // SAFETY: a fault comes with its address.
    let address = || unsafe { cause.si_addr() }.addr();
    if !(cause.si_code == libc::BUS_ADRERR && views::replace(address())) {
        chain(ENTRY, Signal { number, info, context, is_fault });
    }
    // SAFETY: as above.
    unsafe { *errno = saved };
}

/// Makes the interrupted instruction continue at the landing, if it belongs to our copy routines.
fn redirect(context: *mut libc::ucontext_t) -> bool {
    let pc = program_counter(context);
    // SAFETY: `program_counter` points into the context that the kernel passed.
    let Some(landing) = copy::landing(unsafe { *pc } as usize) else { return false };
    // SAFETY: as above; the kernel restores the thread's registers from it.
    unsafe { *pc = landing as _ };
    true
}

#[cfg(target_arch = "x86_64")]
fn program_counter(context: *mut libc::ucontext_t) -> *mut libc::greg_t {
    // SAFETY: the kernel passes a valid ucontext, and REG_RIP is a valid index of its registers.
    unsafe { &raw mut (*context).uc_mcontext.gregs[libc::REG_RIP as usize] }
}

#[cfg(target_arch = "aarch64")]
fn program_counter(context: *mut libc::ucontext_t) -> *mut libc::c_ulonglong {
    // SAFETY: the kernel passes a valid ucontext.
    unsafe { &raw mut (*context).uc_mcontext.pc }
}

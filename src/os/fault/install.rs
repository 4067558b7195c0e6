//! Installs the handler, and puts it back in front of handlers that were installed later.

use std::mem::MaybeUninit;
use std::ptr;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use super::chain::{PREDECESSORS, empty_action, exchange};
use super::handler::{HANDLERS, WAKE_MARK};
use super::{FaultGuard, views};

static ENABLED: AtomicBool = AtomicBool::new(true);

/// Number of calls of [`reinstall_sometimes`].
static CALLS: AtomicUsize = AtomicUsize::new(0);
const CALLS_PER_LOOK: usize = 16;

/// Sets the mappings that the handler guards, for the rest of the process.
pub fn set_fault_guard(guard: FaultGuard) {
    ENABLED.store(guard != FaultGuard::Off, Ordering::Relaxed);
    views::IS_GUARDING.store(guard == FaultGuard::On, Ordering::Relaxed);
}

/// Installs the handler, or puts it back in front, and returns whether this thread would now survive a fault in
/// [`super::copy()`]. It would not in three cases: the handler is switched off; more handlers came and went than we
/// have entries; or this thread blocks SIGBUS, and then the kernel kills it whatever the handlers are.
///
/// Call it before each read or batch. It takes two system calls.
pub fn install_and_check() -> bool {
    reinstall() && !is_blocked()
}

/// Installs the handler, or puts it back in front. This is enough before memory is handed out, because any thread may
/// touch that memory. If the handler is in front already, it takes one system call. The first call in a forked child
/// also reports inherited damage.
pub fn reinstall() -> bool {
    views::call_hook_in_child();
    ENABLED.load(Ordering::Relaxed) && (is_installed() || install())
}

/// Calls [`reinstall`] at the first call after a fork and then at every 16th call, for callers that cannot afford a
/// system call each time. The first call matters because torch's workers install a handler of their own as they start.
pub fn reinstall_sometimes() {
    if CALLS.fetch_add(1, Ordering::Relaxed).is_multiple_of(CALLS_PER_LOOK) {
        reinstall();
    }
}

/// Returns whether handlers are installed at all.
pub(super) fn is_enabled() -> bool {
    ENABLED.load(Ordering::Relaxed)
}

/// Returns whether our handler receives the signal first.
pub fn is_installed() -> bool {
    exchange(None).is_some_and(|current| is_ours(&current))
}

/// Prepares a child that was just forked: its next [`reinstall_sometimes`] checks the handler, and its next
/// [`reinstall`] reports inherited damage.
pub fn forked() {
    CALLS.store(0, Ordering::Relaxed);
    views::forked();
}

/// Interrupts a system call in which the process's first thread waits, unless that thread is the caller. It sends a
/// signal that our handler ignores. Signal handlers may call this function.
pub fn wake_first_thread() {
    // SAFETY: takes no argument and cannot fail.
    let process = unsafe { libc::getpid() };
    // SAFETY: as above.
    let thread = unsafe { libc::gettid() };
    // Another handler in front would mistake the signal for a fault.
    if thread == process || !is_installed() {
        return;
    }
    // SAFETY: all-zero is a valid siginfo.
    let mut info: libc::siginfo_t = unsafe { MaybeUninit::zeroed().assume_init() };
    info.si_signo = libc::SIGBUS;
    info.si_code = libc::SI_QUEUE;
    info.si_errno = WAKE_MARK;
    // SAFETY: `info` is live, and the signal goes to this process. It fails without effect if that thread has ended.
    unsafe { libc::syscall(libc::SYS_rt_tgsigqueueinfo, process, process, libc::SIGBUS, &raw const info) };
}

fn is_blocked() -> bool {
    let mut mask = MaybeUninit::<libc::sigset_t>::zeroed();
    // SAFETY: a null new mask only asks; `mask` is valid for the answer.
    let asked = unsafe { libc::pthread_sigmask(libc::SIG_BLOCK, ptr::null(), mask.as_mut_ptr()) };
    // SAFETY: zeroed is a valid set, so `mask` is initialised whatever the call did.
    let mask = unsafe { mask.assume_init() };
    // SAFETY: `mask` is an initialised set.
    asked != 0 || unsafe { libc::sigismember(&raw const mask, libc::SIGBUS) } == 1
}

fn install() -> bool {
    let Some(current) = exchange(None) else { return false };
    let Some(displaced) = install_over(&current) else { return false };
    // Another thread installed a handler in the meantime: install once more, over that handler.
    same(&displaced, &current) || is_ours(&displaced) || install_over(&displaced).is_some()
}

/// Installs the entry with the predecessor `action`, and returns the action that it displaced.
fn install_over(action: &libc::sigaction) -> Option<libc::sigaction> {
    // Store the predecessor before the entry that reads it.
    let entry = entry_after(action)?;
    exchange(Some(&action_of(entry)))
}

/// Returns the entry that has this action as its predecessor, or a free entry, or `None` when the table is full.
fn entry_after(action: &libc::sigaction) -> Option<usize> {
    let mut leaked: *mut libc::sigaction = ptr::null_mut();
    PREDECESSORS.iter().position(|place| {
        // SAFETY: null, or a leaked box that nothing writes to.
        if let Some(known) = unsafe { place.load(Ordering::Acquire).as_ref() } {
            return same(known, action);
        }
        if leaked.is_null() {
            leaked = Box::into_raw(Box::new(*action));
        }
        match place.compare_exchange(ptr::null_mut(), leaked, Ordering::AcqRel, Ordering::Acquire) {
            Ok(_) => true,
            // SAFETY: not null, so a leaked box that nothing writes to.
            Err(theirs) => same(unsafe { &*theirs }, action),
        }
    })
}

fn same(one: &libc::sigaction, other: &libc::sigaction) -> bool {
    (one.sa_sigaction, one.sa_flags) == (other.sa_sigaction, other.sa_flags)
}

fn is_ours(action: &libc::sigaction) -> bool {
    HANDLERS.iter().any(|&handler| action.sa_sigaction == handler as usize)
}

fn action_of(entry: usize) -> libc::sigaction {
    let mut action = empty_action();
    action.sa_sigaction = HANDLERS[entry] as usize;
    // ONSTACK: for example Go's threads have small stacks. NODEFER: a fault inside a predecessor must not be fatal
    // because SIGBUS is blocked. No RESTART: `wake_first_thread` interrupts system calls.
    action.sa_flags = libc::SA_SIGINFO | libc::SA_ONSTACK | libc::SA_NODEFER;
    action
}

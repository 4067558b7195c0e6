//! Installs the handler, and puts it back in front of handlers that came later.

use std::mem::MaybeUninit;
use std::ptr;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use super::chain::{PREDECESSORS, empty_action, exchange};
use super::handler::{HANDLERS, WAKE_MARK};
use super::{FaultGuard, views};

static ENABLED: AtomicBool = AtomicBool::new(true);

/// Calls of [`reinstall_sometimes`].
static CALLS: AtomicUsize = AtomicUsize::new(0);
const CALLS_PER_LOOK: usize = 16;

/// Sets the mappings that the handler guards, for good.
pub fn set_fault_guard(guard: FaultGuard) {
    ENABLED.store(guard != FaultGuard::Off, Ordering::Relaxed);
    views::IS_GUARDING.store(guard == FaultGuard::On, Ordering::Relaxed);
}

/// Installs the handler, or puts it back in front, and returns whether a fault in [`super::copy()`] is survivable in
/// this thread, right now. It is not if the handler is switched off, if more handlers came and went than we have
/// entries, or if SIGBUS is blocked in this thread: then the kernel kills, whatever handlers there are.
///
/// To be called before each read or batch; two system calls.
pub fn install_and_check() -> bool {
    reinstall() && !is_blocked()
}

/// Installs the handler, or puts it back in front. This is enough before memory is handed out, because any thread may
/// touch that memory. It takes one system call if the handler is in front already. The first call in a forked child also
/// reports inherited damage.
pub fn reinstall() -> bool {
    views::call_hook_in_child();
    ENABLED.load(Ordering::Relaxed) && (is_installed() || install())
}

/// [`reinstall`] for calls that have no time for a system call: does it at the first call after a fork (torch's
/// workers install a handler of their own as they begin) and then at every 16th.
pub fn reinstall_sometimes() {
    if CALLS.fetch_add(1, Ordering::Relaxed).is_multiple_of(CALLS_PER_LOOK) {
        reinstall();
    }
}

/// Returns whether handlers are installed at all.
pub(super) fn is_enabled() -> bool {
    ENABLED.load(Ordering::Relaxed)
}

/// Returns whether a handler of ours gets the signal first.
pub fn is_installed() -> bool {
    exchange(None).is_some_and(|current| is_ours(&current))
}

/// Makes the next [`reinstall_sometimes`] look, and the next [`reinstall`] report inherited damage, in a child that was
/// just forked.
pub fn forked() {
    CALLS.store(0, Ordering::Relaxed);
    views::forked();
}

/// Interrupts a waiting system call of the process's first thread, unless that thread is the caller. It sends a signal,
/// and our handler ignores it. Signal handlers may call this.
pub fn wake_first_thread() {
    // SAFETY: takes no argument and cannot fail.
    let process = unsafe { libc::getpid() };
    // SAFETY: as above.
    let thread = unsafe { libc::gettid() };
    // Another handler in front would take the signal for a fault.
    if thread == process || !is_installed() {
        return;
    }
    // SAFETY: all-zero is a valid siginfo.
    let mut info: libc::siginfo_t = unsafe { MaybeUninit::zeroed().assume_init() };
    info.si_signo = libc::SIGBUS;
    info.si_code = libc::SI_QUEUE;
    info.si_errno = WAKE_MARK;
    // SAFETY: `info` is live, and the signal goes to this process. In vain if there is no such thread any more.
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
    // Another thread installed a handler in between: once more, over that one.
    same(&displaced, &current) || is_ours(&displaced) || install_over(&displaced).is_some()
}

/// Installs the entry whose predecessor is `action`, and returns the action that it displaced.
fn install_over(action: &libc::sigaction) -> Option<libc::sigaction> {
    // First the predecessor, then the entry that reads it.
    let entry = entry_after(action)?;
    exchange(Some(&action_of(entry)))
}

/// Returns the entry whose predecessor is this action, or else a free entry, or `None` when the table is full.
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
    // ONSTACK: threads of Go and others have small stacks. NODEFER: a fault while we are in a predecessor must not be
    // fatal for being blocked. No RESTART: `wake_first_thread` interrupts system calls.
    action.sa_flags = libc::SA_SIGINFO | libc::SA_ONSTACK | libc::SA_NODEFER;
    action
}

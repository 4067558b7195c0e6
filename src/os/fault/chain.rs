//! Passes signals that are not ours on to the handler that was installed before one of our entries.
//!
//! Other libraries keep us as *their* predecessor, so a signal can go in a circle. Each visit to an entry's predecessor
//! is recorded with the address of its stack frame. A signal that reaches the same entry inside such a visit gets the
//! default action. A handler may also leave by siglongjmp(3) and never end its visit. Such a visit is stale and does
//! not count. There are two signs of a stale visit:
//!
//! * Its frame is not above the present frame: the stack was unwound past it.
//! * The signal is a fault with another context, hence a new fault. Handlers that call each other in a circle keep the
//!   context. A circle can also end in raise(3), but a signal sent by raise(3) is no fault.

use std::ffi::{c_int, c_void};
use std::mem::MaybeUninit;
use std::ptr;
use std::sync::atomic::{AtomicI64, AtomicPtr, AtomicUsize, Ordering};

/// Number of different handlers that ours can be installed over. Each of them gets an entry.
pub(super) const ENTRIES: usize = 8;

/// The action that each entry replaced. It is leaked, because a handler may read it at any time.
pub(super) static PREDECESSORS: [AtomicPtr<libc::sigaction>; ENTRIES] =
    [const { AtomicPtr::new(ptr::null_mut()) }; ENTRIES];

/// Slots for visits. A thread that finds no free slot gets the default action.
static VISITS: [Visit; 256] = [const { Visit::free() }; 256];

pub(super) type Handler = extern "C" fn(c_int, *mut libc::siginfo_t, *mut c_void);

/// A signal as the kernel delivered it to an entry.
#[derive(Clone, Copy)]
pub(super) struct Signal {
    pub number: c_int,
    pub info: *mut libc::siginfo_t,
    pub context: *mut c_void,
    /// Whether an instruction of this thread caused the signal.
    pub is_fault: bool,
}

/// A thread inside the predecessor of an entry.
struct Visit {
    /// `thread * ENTRIES + entry`, or 0 while the slot is free.
    key: AtomicI64,
    frame: AtomicUsize,
    context: AtomicUsize,
}

impl Visit {
    const fn free() -> Self {
        Self { key: AtomicI64::new(0), frame: AtomicUsize::new(0), context: AtomicUsize::new(0) }
    }

    /// Returns whether this visit encloses the handler of `signal` whose stack frame is `frame`. Only the thread of the
    /// visit may ask.
    fn encloses(&self, frame: usize, signal: Signal) -> bool {
        let is_same_signal = self.context.load(Ordering::Relaxed) == signal.context.addr();
        self.frame.load(Ordering::Relaxed) > frame && (is_same_signal || !signal.is_fault)
    }

    fn claim(&self, key: i64) -> bool {
        self.key.compare_exchange(0, key, Ordering::Relaxed, Ordering::Relaxed).is_ok()
    }

    fn release(&self, key: i64) {
        let _ = self.key.compare_exchange(key, 0, Ordering::Relaxed, Ordering::Relaxed);
    }
}

/// Hands the signal to the entry's predecessor.
#[inline(never)] // So that its frame always has the same distance from the kernel's frame.
pub(super) fn chain(entry: usize, signal: Signal) {
    // SAFETY: takes no argument and cannot fail.
    let thread = i64::from(unsafe { libc::gettid() });
    let key = thread * ENTRIES as i64 + entry as i64;
    let frame = ptr::from_ref(&signal).addr();
    let mut is_circle = false;
    let of_this_thread = |key: i64| key / ENTRIES as i64 == thread;
    for visit in &VISITS {
        match visit.key.load(Ordering::Relaxed) {
            noted if of_this_thread(noted) && !visit.encloses(frame, signal) => visit.release(noted),
            noted => is_circle |= noted == key,
        }
    }
    if is_circle {
        return default_action(signal.is_fault);
    }
    let free = || VISITS.iter().find(|visit| visit.claim(key));
    let visit = free().or_else(|| {
        release_those_of_ended_threads();
        free()
    });
    let Some(visit) = visit else { return default_action(signal.is_fault) };
    visit.frame.store(frame, Ordering::Relaxed);
    visit.context.store(signal.context.addr(), Ordering::Relaxed);
    call_predecessor(entry, signal);
    visit.release(key);
}

fn release_those_of_ended_threads() {
    // SAFETY: takes no argument and cannot fail.
    let process = unsafe { libc::getpid() };
    for visit in &VISITS {
        let key = visit.key.load(Ordering::Relaxed);
        // SAFETY: signal 0 asks whether the thread exists.
        if key != 0 && unsafe { libc::syscall(libc::SYS_tgkill, process, key / ENTRIES as i64, 0) } != 0 {
            visit.release(key);
        }
    }
}

fn call_predecessor(entry: usize, signal: Signal) {
    let predecessor = PREDECESSORS[entry].load(Ordering::Acquire);
    // SAFETY: null, or a leaked box that nothing writes to.
    let Some(action) = (unsafe { predecessor.as_ref() }) else { return default_action(signal.is_fault) };
    match action.sa_sigaction {
        libc::SIG_DFL => return default_action(signal.is_fault),
        // The kernel does not let a program ignore a fault either.
        libc::SIG_IGN if signal.is_fault => return default_action(signal.is_fault),
        libc::SIG_IGN => return,
        _ => {}
    }
    let mut blocked = action.sa_mask;
    if action.sa_flags & libc::SA_NODEFER == 0 {
        // SAFETY: `blocked` is an initialised set.
        unsafe { libc::sigaddset(&raw mut blocked, signal.number) };
    }
    let mut before = empty_action().sa_mask;
    // SAFETY: both sets are initialised and live.
    unsafe { libc::pthread_sigmask(libc::SIG_BLOCK, &raw const blocked, &raw mut before) };
    if action.sa_flags & libc::SA_SIGINFO != 0 {
        // SAFETY: neither SIG_DFL nor SIG_IGN, so with SA_SIGINFO it is a function of this type (sigaction(2)).
        let handler = unsafe { std::mem::transmute::<usize, Handler>(action.sa_sigaction) };
        handler(signal.number, signal.info, signal.context);
    } else {
        // SAFETY: neither SIG_DFL nor SIG_IGN, so without SA_SIGINFO it is a function of this type.
        let handler = unsafe { std::mem::transmute::<usize, extern "C" fn(c_int)>(action.sa_sigaction) };
        handler(signal.number);
    }
    // SAFETY: `before` was filled by the call above.
    unsafe { libc::pthread_sigmask(libc::SIG_SETMASK, &raw const before, ptr::null_mut()) };
}

/// Dies of SIGBUS. A fault needs no signal from us: it happens again as soon as the handler returns.
fn default_action(is_fault: bool) {
    exchange(Some(&empty_action()));
    if !is_fault {
        // SAFETY: takes a signal number; SA_NODEFER left SIGBUS unblocked.
        unsafe { libc::raise(libc::SIGBUS) };
    }
}

pub(super) fn empty_action() -> libc::sigaction {
    // SAFETY: all-zero is a valid `sigaction`: default action, empty mask, no flags.
    unsafe { MaybeUninit::zeroed().assume_init() }
}

/// Sets the action `new`, if given, and returns the previous action (sigaction(2)).
pub(super) fn exchange(new: Option<&libc::sigaction>) -> Option<libc::sigaction> {
    let mut old = empty_action();
    let new = new.map_or(ptr::null(), ptr::from_ref);
    // SAFETY: `new` is null or a valid action, `old` is valid for writes.
    let status = unsafe { libc::sigaction(libc::SIGBUS, new, &raw mut old) };
    (status == 0).then_some(old)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn signal(context: usize, is_fault: bool) -> Signal {
        let context = ptr::without_provenance_mut(context);
        Signal { number: libc::SIGBUS, info: ptr::null_mut(), context, is_fault }
    }

    #[test]
    fn a_visit_encloses_deeper_handlers_of_the_same_or_a_sent_signal() {
        let visit = Visit::free();
        assert!(visit.claim(9) && !visit.claim(9));
        visit.frame.store(1000, Ordering::Relaxed);
        visit.context.store(2000, Ordering::Relaxed);
        // Handlers that call each other, and a handler that ends in raise(3).
        assert!(visit.encloses(900, signal(2000, true)));
        assert!(visit.encloses(900, signal(800, false)));
        // A new fault, deeper on the stack; and any signal after the stack was unwound past the visit.
        assert!(!visit.encloses(900, signal(800, true)));
        for is_fault in [true, false] {
            assert!(!visit.encloses(1000, signal(2000, is_fault)));
            assert!(!visit.encloses(1100, signal(2000, is_fault)));
        }
        visit.release(8);
        assert!(!visit.claim(10));
        visit.release(9);
        assert!(visit.claim(10));
    }
}

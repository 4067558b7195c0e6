//! The SIGBUS handler. See the module above for what it may do.

use std::ffi::{c_int, c_void};
use std::mem::MaybeUninit;
use std::ptr;
use std::sync::atomic::{AtomicBool, AtomicI64, AtomicPtr, AtomicUsize, Ordering};

use super::{copy, views};

static ENABLED: AtomicBool = AtomicBool::new(true);

/// Of [`stay_in_front`].
static CALLS: AtomicUsize = AtomicUsize::new(0);
const CALLS_PER_LOOK: usize = 16;

/// How many different handlers we can stand in front of, each with an entry of ours.
const ENTRIES: usize = 8;

/// What stood in front of each of our entries, leaked: a handler may be reading it at any time.
///
/// An entry is a function of its own because other libraries keep us as *their* predecessor and put us
/// back when they leave (`faulthandler.disable()`). What they put back then is the entry that was there
/// before them, whose predecessor is the right one, and not their own.
static PREDECESSORS: [AtomicPtr<libc::sigaction>; ENTRIES] =
    [const { AtomicPtr::new(ptr::null_mut()) }; ENTRIES];

/// Threads that are inside the chain, with the entry by which they came: `thread * ENTRIES + entry`. A
/// thread that finds no free place gets the default action.
static IN_CHAIN: [AtomicI64; 64] = [const { AtomicI64::new(0) }; 64];

/// Turns the handler on (the default) or off for good: off, nothing is installed and [`ready`]
/// answers `false`, so that readers use `pread`.
pub fn set_enabled(enabled: bool) {
    ENABLED.store(enabled, Ordering::Relaxed);
}

/// Makes sure that a fault in [`super::copy()`] is survivable in this thread, right now: installs the
/// handler, or puts it back in front. `false` when it cannot be: switched off, more handlers came and
/// went than we have entries, or SIGBUS is blocked in this thread, in which case the kernel kills
/// whatever handlers there are.
///
/// To be asked before each read or batch; two system calls.
pub fn ready() -> bool {
    stand_in_front() && !blocked()
}

/// Half of [`ready`], for memory that is handed out: which threads will touch it is not known. One system call.
pub fn stand_in_front() -> bool {
    ENABLED.load(Ordering::Relaxed) && in_front()
}

/// [`stand_in_front`] for calls that have no time for one: looks at the first after a fork (torch's workers install a
/// handler of their own as they begin) and then now and again.
pub fn stay_in_front() {
    if CALLS.fetch_add(1, Ordering::Relaxed).is_multiple_of(CALLS_PER_LOOK) {
        stand_in_front();
    }
}

/// In a child that was just forked.
pub fn forked() {
    CALLS.store(0, Ordering::Relaxed);
}

fn blocked() -> bool {
    let mut mask = MaybeUninit::<libc::sigset_t>::zeroed();
    // SAFETY: a null new mask only asks; `mask` is valid for the answer.
    let asked = unsafe { libc::pthread_sigmask(libc::SIG_BLOCK, ptr::null(), mask.as_mut_ptr()) };
    // SAFETY: zeroed is a valid set, so `mask` is initialised whatever the call did.
    let mask = unsafe { mask.assume_init() };
    // SAFETY: `mask` is an initialised set.
    asked != 0 || unsafe { libc::sigismember(&raw const mask, libc::SIGBUS) } == 1
}

fn in_front() -> bool {
    let Some(current) = exchange(None) else { return false };
    if is_ours(&current) {
        return true;
    }
    // First the predecessor, then the entry that reads it.
    let Some(entry) = entry_before(&current) else { return false };
    let Some(displaced) = exchange(Some(&action_of(entry))) else { return false };
    // Somebody came in between: once more, in front of that one.
    same(&displaced, &current) || is_ours(&displaced) || in_front_of(&displaced)
}

fn in_front_of(displaced: &libc::sigaction) -> bool {
    entry_before(displaced).is_some_and(|entry| exchange(Some(&action_of(entry))).is_some())
}

/// The entry whose predecessor is this action; a free one if there is none yet.
fn entry_before(action: &libc::sigaction) -> Option<usize> {
    let mut leaked: *mut libc::sigaction = ptr::null_mut();
    PREDECESSORS.iter().position(|place| {
        // SAFETY: null, or a leaked box that nobody writes to.
        if let Some(known) = unsafe { place.load(Ordering::Acquire).as_ref() } {
            return same(known, action);
        }
        if leaked.is_null() {
            leaked = Box::into_raw(Box::new(*action));
        }
        match place.compare_exchange(ptr::null_mut(), leaked, Ordering::AcqRel, Ordering::Acquire) {
            Ok(_) => true,
            // SAFETY: not null, so a leaked box that nobody writes to.
            Err(theirs) => same(unsafe { &*theirs }, action),
        }
    })
}

fn same(one: &libc::sigaction, other: &libc::sigaction) -> bool {
    (one.sa_sigaction, one.sa_flags) == (other.sa_sigaction, other.sa_flags)
}

type Handler = extern "C" fn(c_int, *mut libc::siginfo_t, *mut c_void);

const HANDLERS: [Handler; ENTRIES] = [
    on_sigbus::<0>,
    on_sigbus::<1>,
    on_sigbus::<2>,
    on_sigbus::<3>,
    on_sigbus::<4>,
    on_sigbus::<5>,
    on_sigbus::<6>,
    on_sigbus::<7>,
];

fn is_ours(action: &libc::sigaction) -> bool {
    HANDLERS.iter().any(|&handler| action.sa_sigaction == handler as usize)
}

fn action_of(entry: usize) -> libc::sigaction {
    let mut action = empty_action();
    action.sa_sigaction = HANDLERS[entry] as usize;
    // ONSTACK: Go's and others' threads have small stacks. NODEFER: a fault while we are in a
    // predecessor must not be fatal for being blocked.
    action.sa_flags = libc::SA_SIGINFO | libc::SA_ONSTACK | libc::SA_NODEFER;
    action
}

fn empty_action() -> libc::sigaction {
    // SAFETY: all-zero is a valid `sigaction`: default action, empty mask, no flags.
    unsafe { MaybeUninit::zeroed().assume_init() }
}

/// sigaction(2): sets `new` if there is one and returns what stood there.
fn exchange(new: Option<&libc::sigaction>) -> Option<libc::sigaction> {
    let mut old = empty_action();
    let new = new.map_or(ptr::null(), ptr::from_ref);
    // SAFETY: `new` is null or a valid action, `old` is valid for writes.
    let status = unsafe { libc::sigaction(libc::SIGBUS, new, &raw mut old) };
    (status == 0).then_some(old)
}

extern "C" fn on_sigbus<const ENTRY: usize>(signal: c_int, info: *mut libc::siginfo_t, context: *mut c_void) {
    // SAFETY: the kernel passes a valid siginfo to a SA_SIGINFO handler.
    let cause = unsafe { &*info };
    let is_fault = cause.si_code > 0;
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
        chain(ENTRY, signal, info, context, is_fault);
    }
    // SAFETY: as above.
    unsafe { *errno = saved };
}

/// If the interrupted instruction is one of our copy's, lets it go on at the landing.
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

/// Hands the signal to the entry's predecessor.
fn chain(entry: usize, signal: c_int, info: *mut libc::siginfo_t, context: *mut c_void, is_fault: bool) {
    // SAFETY: takes no argument and cannot fail.
    let thread = unsafe { libc::gettid() };
    let visit = i64::from(thread) * ENTRIES as i64 + entry as i64;
    let returning = IN_CHAIN.iter().any(|place| place.load(Ordering::Relaxed) == visit);
    let place = IN_CHAIN
        .iter()
        .find(|place| place.compare_exchange(0, visit, Ordering::Relaxed, Ordering::Relaxed).is_ok());
    match place {
        Some(_) if !returning => call_predecessor(entry, signal, info, context, is_fault),
        _ => default_action(is_fault),
    }
    if let Some(place) = place {
        place.store(0, Ordering::Relaxed);
    }
}

fn call_predecessor(
    entry: usize,
    signal: c_int,
    info: *mut libc::siginfo_t,
    context: *mut c_void,
    is_fault: bool,
) {
    let predecessor = PREDECESSORS[entry].load(Ordering::Acquire);
    // SAFETY: null, or a leaked box that nobody writes to.
    let Some(action) = (unsafe { predecessor.as_ref() }) else { return default_action(is_fault) };
    match action.sa_sigaction {
        libc::SIG_DFL => return default_action(is_fault),
        // The kernel does not let a fault be ignored either.
        libc::SIG_IGN if is_fault => return default_action(is_fault),
        libc::SIG_IGN => return,
        _ => {}
    }
    let mut blocked = action.sa_mask;
    if action.sa_flags & libc::SA_NODEFER == 0 {
        // SAFETY: `blocked` is an initialised set.
        unsafe { libc::sigaddset(&raw mut blocked, signal) };
    }
    let mut before = empty_action().sa_mask;
    // SAFETY: both sets are initialised and live.
    unsafe { libc::pthread_sigmask(libc::SIG_BLOCK, &raw const blocked, &raw mut before) };
    if action.sa_flags & libc::SA_SIGINFO != 0 {
        // SAFETY: neither SIG_DFL nor SIG_IGN, so with SA_SIGINFO it is such a function (sigaction(2)).
        let handler = unsafe { std::mem::transmute::<usize, Handler>(action.sa_sigaction) };
        handler(signal, info, context);
    } else {
        // SAFETY: neither SIG_DFL nor SIG_IGN, so without SA_SIGINFO it is such a function.
        let handler = unsafe { std::mem::transmute::<usize, extern "C" fn(c_int)>(action.sa_sigaction) };
        handler(signal);
    }
    // SAFETY: `before` was filled by the call above.
    unsafe { libc::pthread_sigmask(libc::SIG_SETMASK, &raw const before, ptr::null_mut()) };
}

/// Death by SIGBUS. A fault happens again by itself as soon as the handler returns.
fn default_action(is_fault: bool) {
    exchange(Some(&empty_action()));
    if !is_fault {
        // SAFETY: takes a signal number; SA_NODEFER left SIGBUS unblocked.
        unsafe { libc::raise(libc::SIGBUS) };
    }
}

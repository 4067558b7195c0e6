//! What happens around a fork (pthread_atfork(3)):
//!
//! 1. before it, the forking thread waits until no thread is in a section ([`fork`]), and takes the two lists that
//!    are locked outside of sections: what is being unmapped ([`unmap`]) and what is mapped ([`views`]);
//! 2. in the parent it lets go of them;
//! 3. in the child it first unmaps what the parent's threads had left to do, as the child has none of them, and
//!    forgets what they had found out about the signal handler.

use std::cell::RefCell;
use std::sync::{MutexGuard, Once, RwLockWriteGuard};

use super::fork;
use crate::os::fault;
use crate::os::fault::views::{self, Guarded};
use crate::os::memory::unmap::{self, Pending};

thread_local! {
    /// Used by the thread that forks, in the parent and in the child.
    static FORKING: RefCell<Option<Held>> = const { RefCell::new(None) };
}

struct Held {
    // Dropped in this order.
    _guarded: MutexGuard<'static, Guarded>,
    pending: MutexGuard<'static, Pending>,
    _gate: RwLockWriteGuard<'static, ()>,
}

/// Makes forks wait from now on. To be called once, when the library is loaded, before there are threads that could
/// fork meanwhile: a child that is forked during this call would wait for its end for ever.
pub fn register() {
    static REGISTERED: Once = Once::new();
    REGISTERED.call_once(|| {
        // SAFETY: the three functions live as long as the process and take no arguments.
        let failed = unsafe { libc::pthread_atfork(Some(prepare), Some(in_parent), Some(in_child)) };
        debug_assert_eq!(failed, 0);
    });
}

extern "C" fn prepare() {
    // In this order: threads lock the lists inside sections, too.
    let gate = fork::close_gate();
    let pending = unmap::lock();
    let held = Held { _guarded: views::lock(), pending, _gate: gate };
    // A thread that is ending has no such storage any more. Then it forks as if nothing was registered.
    let _ = FORKING.try_with(|forking| *forking.borrow_mut() = Some(held));
}

extern "C" fn in_parent() {
    let _ = FORKING.try_with(|forking| forking.borrow_mut().take());
}

extern "C" fn in_child() {
    fork::count();
    let held = FORKING.try_with(|forking| forking.borrow_mut().take());
    if let Ok(Some(mut held)) = held {
        held.pending.adopt();
        fault::forked();
    }
}

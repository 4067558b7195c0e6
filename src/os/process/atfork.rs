//! The steps around a fork (pthread_atfork(3)):
//!
//! 1. Before the fork, the forking thread waits until no thread is in a section ([`fork`]). It then locks the two lists
//!    that other code also locks outside of sections: mappings being unmapped ([`unmap`]) and guarded mappings
//!    ([`views`]).
//! 2. In the parent, it unlocks them.
//! 3. In the child, it first unmaps the rest of the parent's list, because the child has none of the threads that did
//!    this. Then it forgets the parent's state of the signal handler.

use std::cell::RefCell;
use std::sync::{MutexGuard, Once, RwLockWriteGuard};

use super::fork;
use crate::os::fault;
use crate::os::fault::views::{self, Guarded};
use crate::os::memory::unmap::{self, Pending};

thread_local! {
    /// The locks that the forking thread holds from before the fork until after it, in the parent and in the
    /// child.
    static FORKING: RefCell<Option<Held>> = const { RefCell::new(None) };
}

struct Held {
    // Dropped in this order.
    _guarded: MutexGuard<'static, Guarded>,
    pending: MutexGuard<'static, Pending>,
    _gate: RwLockWriteGuard<'static, ()>,
}

/// Makes forks wait from now on. Call it when the library is loaded, before other threads can fork: a child forked
/// during this call would hang forever.
pub fn register() {
    static REGISTERED: Once = Once::new();
    REGISTERED.call_once(|| {
        // SAFETY: the three functions live as long as the process and take no arguments.
        let failed = unsafe { libc::pthread_atfork(Some(prepare), Some(in_parent), Some(in_child)) };
        debug_assert_eq!(failed, 0);
    });
}

extern "C" fn prepare() {
    // In this order, because threads also lock the lists inside sections.
    let gate = fork::close_gate();
    let pending = unmap::lock();
    let held = Held { _guarded: views::lock(), pending, _gate: gate };
    // A thread that is ending no longer has this storage. It forks as if nothing were registered.
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

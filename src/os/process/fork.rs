//! Locks and fork(2): a child inherits a lock that another thread of the parent held, and nobody is left to
//! release it. Who locks something that a child goes on using does so inside [`section`], and a fork waits
//! until no thread is in one (pthread_atfork(3)). It waits for the list of what is being unmapped as well, as a
//! child has none of the threads that do it ([`unmap`]), and for the list of what is mapped ([`views`]): both are locked
//! within sections.

use std::cell::RefCell;
use std::sync::{MutexGuard, Once, OnceLock, PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard};

use crate::os::fault;
use crate::os::fault::views::{self, Mapped};
use crate::os::memory::unmap::{self, Pending};

static GATE: RwLock<()> = RwLock::new(());
static REGISTERED: Once = Once::new();

thread_local! {
    /// Of the thread that forks, in the parent and in the child.
    static FORKING: RefCell<Option<Held>> = const { RefCell::new(None) };
}

struct Held {
    // The first to be let go.
    _mapped: MutexGuard<'static, Mapped>,
    pending: MutexGuard<'static, Pending>,
    _gate: RwLockWriteGuard<'static, ()>,
}

/// While it lives this process does not fork.
#[derive(Debug)]
pub struct Section {
    _guard: RwLockReadGuard<'static, ()>,
}

/// Begins a section. It must be short (no read of a file in it), and contain no other: a fork that waits in
/// between would stop both.
pub fn section() -> Section {
    watch();
    Section { _guard: GATE.read().unwrap_or_else(PoisonError::into_inner) }
}

/// The cell's value, else what `make` gives. That runs outside of any lock, at the same time in several threads
/// perhaps; [`OnceLock::get_or_init`] would leave a child waiting for a thread that it has not.
pub fn get_or_make<T>(cell: &OnceLock<T>, make: impl FnOnce() -> T) -> &T {
    if let Some(known) = cell.get() {
        return known;
    }
    let value = make();
    let _section = section();
    cell.get_or_init(|| value)
}

/// From now on forks wait, for sections and for what is being unmapped.
pub fn watch() {
    REGISTERED.call_once(|| {
        // SAFETY: the three functions live as long as the process and take no arguments.
        let failed = unsafe { libc::pthread_atfork(Some(prepare), Some(in_parent), Some(in_child)) };
        debug_assert_eq!(failed, 0);
    });
}

extern "C" fn prepare() {
    // In this order: the lists are locked within sections.
    let gate = GATE.write().unwrap_or_else(PoisonError::into_inner);
    let pending = unmap::lock();
    let held = Held { _mapped: views::mapped(), pending, _gate: gate };
    // A thread that is ending has no such place any more: then the fork is as it would be without this.
    let _ = FORKING.try_with(|forking| *forking.borrow_mut() = Some(held));
}

extern "C" fn in_parent() {
    let _ = FORKING.try_with(|forking| forking.borrow_mut().take());
}

extern "C" fn in_child() {
    let held = FORKING.try_with(|forking| forking.borrow_mut().take());
    if let Ok(Some(mut held)) = held {
        held.pending.adopt();
        fault::forked();
    }
}

//! Locks and fork(2).
//!
//! After `fork`, a lock that another thread held stays locked forever in the child. Take any lock that the child may
//! need inside a [`section`]; `fork` waits until no thread is in one. `atfork.rs` registers this with the system.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, OnceLock, PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard};

static GATE: RwLock<()> = RwLock::new(());
static GENERATION: AtomicU64 = AtomicU64::new(0);

/// A stretch of code during which this process does not fork.
pub type Section = RwLockReadGuard<'static, ()>;

/// Begins a section. Keep it short (no read of a file) and do not begin another one inside: a fork that waits in
/// between would stop both.
pub fn section() -> Section {
    GATE.read().unwrap_or_else(PoisonError::into_inner)
}

/// Locks in a section. A poisoned lock still holds its last value.
pub fn with_lock<T, R>(lock: &Mutex<T>, act: impl FnOnce(&mut T) -> R) -> R {
    let _section = section();
    act(&mut lock.lock().unwrap_or_else(PoisonError::into_inner))
}

/// Returns the cell's value, or stores the result of `make`. `make` runs outside of any lock, perhaps in several
/// threads at once. [`OnceLock::get_or_init`] would make a child wait for a thread that it does not have.
pub fn get_or_make<T>(cell: &OnceLock<T>, make: impl FnOnce() -> T) -> &T {
    if let Some(known) = cell.get() {
        return known;
    }
    // Declared before the section: if another thread was faster, the value is dropped after the section's end.
    let mut value = Some(make());
    let _section = section();
    // `get_or_init` calls a closure at most once, so the value is there.
    cell.get_or_init(|| value.take().expect("called once"))
}

/// Number of forks between the process that loaded this library and the calling process. Parent and child always differ
/// in it, unlike process IDs, which may be equal in different namespaces.
pub fn generation() -> u64 {
    GENERATION.load(Ordering::Relaxed)
}

/// Waits until no thread is in a section, and lets no section begin until the result is dropped.
pub(super) fn close_gate() -> RwLockWriteGuard<'static, ()> {
    GATE.write().unwrap_or_else(PoisonError::into_inner)
}

/// Counts the fork, in the child.
pub(super) fn count() {
    GENERATION.fetch_add(1, Ordering::Relaxed);
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc;
    use std::time::Duration;

    use super::*;

    /// Records, when dropped, whether a fork could go on. Other threads are in sections only for a moment, but a value
    /// dropped in a section would wait for itself.
    struct Made(&'static OnceLock<bool>);

    impl Drop for Made {
        fn drop(&mut self) {
            let (done, gate_was_closed) = mpsc::channel();
            std::thread::spawn(move || {
                drop(close_gate());
                let _ = done.send(());
            });
            let _ = self.0.set(gate_was_closed.recv_timeout(Duration::from_secs(60)).is_ok());
        }
    }

    #[test]
    fn unused_values_are_dropped_outside_of_sections() {
        static DROPPED: [OnceLock<bool>; 2] = [OnceLock::new(), OnceLock::new()];
        let cell = OnceLock::new();
        let found = get_or_make(&cell, || {
            assert!(cell.set(Made(&DROPPED[0])).is_ok(), "another one is faster");
            Made(&DROPPED[1])
        });
        assert!(std::ptr::eq(found.0, &raw const DROPPED[0]));
        assert_eq!(DROPPED.each_ref().map(OnceLock::get), [None, Some(&true)]);
    }
}

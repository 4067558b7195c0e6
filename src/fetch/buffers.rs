//! Buffers that are reused after their last user drops them.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError, Weak};

use crate::error::Result;
use crate::os::errno::system;
use crate::os::memory::anonymous::{Anonymous, HugePages};
use crate::os::process::fork;

/// Buffers of equal size. The buffer that was returned last is taken first, because it is still in the processor's
/// cache.
///
/// ```text
///   free ──take──> being filled ──lease──> leased ──the last user drops it──> free, or freed
/// ```
#[derive(Debug, Clone)]
pub struct Pool(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    free: Mutex<Vec<Anonymous>>,
    buffer_bytes: usize,
    /// Maximum number of free buffers to keep.
    keep: usize,
    made: AtomicU64,
    /// After a fork, a thread of the parent may hold the lock. A child therefore does not touch it.
    process: u64,
}

/// A full buffer. Dropping it returns it to the pool, or frees it if the pool is gone.
#[derive(Debug)]
pub struct Lease {
    /// `None` only inside `drop`.
    block: Option<Anonymous>,
    pool: Weak<Inner>,
}

impl Pool {
    pub fn new(buffer_bytes: usize, keep: usize) -> Self {
        Self(Arc::new(Inner {
            free: Mutex::default(),
            buffer_bytes,
            keep,
            made: AtomicU64::new(0),
            process: fork::generation(),
        }))
    }

    /// Takes a free buffer, which holds old content, or allocates a new one.
    pub fn take(&self) -> Result<Anonymous> {
        let again = self.0.free.lock().unwrap_or_else(PoisonError::into_inner).pop();
        if let Some(block) = again {
            return Ok(block);
        }
        self.0.made.fetch_add(1, Ordering::Relaxed);
        Anonymous::private(self.0.buffer_bytes, HugePages::Auto).map_err(|errno| {
            let advice = format!("{} bytes were asked for", self.0.buffer_bytes);
            system("cannot allocate a batch", "", errno, advice)
        })
    }

    pub fn lease(&self, block: Anonymous) -> Lease {
        Lease { block: Some(block), pool: Arc::downgrade(&self.0) }
    }

    /// Returns the number of buffers allocated so far.
    pub fn made(&self) -> u64 {
        self.0.made.load(Ordering::Relaxed)
    }
}

impl Lease {
    pub fn as_ptr(&self) -> *mut u8 {
        self.block.as_ref().map_or(std::ptr::null_mut(), Anonymous::as_ptr)
    }

    pub fn len(&self) -> usize {
        self.block.as_ref().map_or(0, Anonymous::len)
    }
}

impl Drop for Lease {
    fn drop(&mut self) {
        let (Some(block), Some(pool)) = (self.block.take(), self.pool.upgrade()) else { return };
        if pool.process == fork::generation() {
            let mut free = pool.free.lock().unwrap_or_else(PoisonError::into_inner);
            if free.len() < pool.keep {
                free.push(block);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_buffer_returns_when_its_lease_is_dropped() {
        let pool = Pool::new(5000, 1);
        let first = pool.lease(pool.take().expect("memory"));
        let address = first.as_ptr();
        assert_eq!(first.len(), 5000);
        let second = pool.lease(pool.take().expect("memory"));
        assert!(second.as_ptr() != address && pool.made() == 2);
        drop(first);
        assert_eq!(pool.take().expect("memory").as_ptr(), address);
        assert_eq!(pool.made(), 2);
    }

    #[test]
    fn the_pool_keeps_at_most_the_requested_buffers() {
        let pool = Pool::new(100, 1);
        let leases: Vec<_> = (0..3).map(|_| pool.lease(pool.take().expect("memory"))).collect();
        drop(leases);
        assert_eq!(pool.0.free.lock().expect("not poisoned").len(), 1);
    }

    #[test]
    fn a_lease_outlives_its_pool() {
        let pool = Pool::new(100, 4);
        let lease = pool.lease(pool.take().expect("memory"));
        drop(pool);
        assert_eq!(lease.len(), 100);
    }
}

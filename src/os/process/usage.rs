//! Requests and waits of the calling thread (getrusage(2)).

use std::mem::MaybeUninit;

/// Counters since the thread began.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Usage {
    /// Touched pages that had to come from storage.
    pub major_faults: u64,
    /// Number of times that the thread slept: for storage, a lock or work.
    pub waits: u64,
    /// Blocks of 512 bytes requested from block devices; 0 if the kernel does not count them.
    pub blocks_read: u64,
}

impl Usage {
    pub fn of_thread() -> Self {
        let mut usage = MaybeUninit::<libc::rusage>::zeroed();
        // SAFETY: `usage` is valid for writes.
        unsafe { libc::getrusage(libc::RUSAGE_THREAD, usage.as_mut_ptr()) };
        // SAFETY: zeroed is a valid rusage, whatever the call did.
        let usage = unsafe { usage.assume_init() };
        Self {
            major_faults: usage.ru_majflt as u64,
            waits: usage.ru_nvcsw as u64,
            blocks_read: usage.ru_inblock as u64,
        }
    }

    #[must_use]
    pub fn since(self, before: Self) -> Self {
        Self {
            major_faults: self.major_faults.saturating_sub(before.major_faults),
            waits: self.waits.saturating_sub(before.waits),
            blocks_read: self.blocks_read.saturating_sub(before.blocks_read),
        }
    }
}

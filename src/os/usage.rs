//! What the calling thread has had to wait for: getrusage(2).

use std::mem::MaybeUninit;

/// Counters since the thread began.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Usage {
    /// Pages that had to come from storage when they were touched.
    pub major_faults: u64,
    /// How often the thread slept: for storage, for a lock, for work.
    pub waits: u64,
}

impl Usage {
    pub fn of_thread() -> Self {
        let mut usage = MaybeUninit::<libc::rusage>::zeroed();
        // SAFETY: `usage` is valid for writes.
        unsafe { libc::getrusage(libc::RUSAGE_THREAD, usage.as_mut_ptr()) };
        // SAFETY: zeroed is a valid rusage, whatever the call did.
        let usage = unsafe { usage.assume_init() };
        Self { major_faults: usage.ru_majflt as u64, waits: usage.ru_nvcsw as u64 }
    }

    #[must_use]
    pub fn since(self, before: Self) -> Self {
        Self {
            major_faults: self.major_faults.saturating_sub(before.major_faults),
            waits: self.waits.saturating_sub(before.waits),
        }
    }
}

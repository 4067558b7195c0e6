//! What a stream of batches did so far.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

macro_rules! metrics {
    ($($(#[$about:meta])* $name:ident),+ $(,)?) => {
        /// Counters, raised by whoever does the work.
        #[derive(Debug, Default)]
        pub struct Metrics { $($(#[$about])* pub $name: AtomicU64),+ }

        impl Metrics {
            /// Name and value of each.
            pub fn list(&self) -> Vec<(&'static str, u64)> {
                vec![$((stringify!($name), self.$name.load(Ordering::Relaxed))),+]
            }
        }
    };
}

metrics! {
    /// Windows handed out.
    windows,
    /// Batches handed out.
    batches,
    /// Bytes of tokens in the windows that were gathered.
    bytes_asked,
    /// Whole pages that lookahead asked the kernel for; of files that are not mapped, what was read.
    bytes_read,
    /// Ranges that were gathered without waiting for storage.
    lookahead_hits,
    /// Ranges for which a gathering thread had to wait.
    lookahead_misses,
    /// Ranges that lookahead found in the page cache.
    already_cached,
    major_faults,
    /// Time that the consumer waited for a batch.
    stall_nanoseconds,
    /// How often it did.
    stalls,
}

impl Metrics {
    pub fn add(counter: &AtomicU64, count: u64) {
        counter.fetch_add(count, Ordering::Relaxed);
    }

    pub fn stalled(&self, time: Duration) {
        Self::add(&self.stall_nanoseconds, u64::try_from(time.as_nanos()).unwrap_or(u64::MAX));
    }
}

//! Counters of a stream of batches.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

macro_rules! metrics {
    ($($(#[$about:meta])* $name:ident),+ $(,)?) => {
        /// Counters. The thread that does the work increments them.
        #[derive(Debug, Default)]
        pub struct Metrics { $($(#[$about])* pub $name: AtomicU64),+ }

        impl Metrics {
            /// Returns the name and the value of each counter.
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
    /// Bytes that lookahead requested from the kernel, in whole pages; for unmapped files, bytes that were read.
    bytes_read,
    /// Windows gathered without a wait for storage.
    lookahead_hits,
    /// Windows for which a gathering thread waited for storage.
    lookahead_misses,
    /// Ranges that lookahead found in the page cache.
    already_cached,
    major_faults,
    /// Time for which the consumer waited.
    stall_nanoseconds,
    /// Batches for which the consumer waited.
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

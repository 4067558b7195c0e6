//! [`Pace`]: limits how many bytes a lead reads at a time.
//!
//! Speculative reads take bandwidth from a read that the program is waiting for, and the program may never ask for
//! their bytes. More requests than the bandwidth-delay product make no read finish sooner. The product is estimated as
//! in TCP Vegas: for example, a read that took twice the minimum time found the storage twice as full as necessary.
//!
//! Brakmo and Peterson, "TCP Vegas", IEEE Journal on Selected Areas in Communications 13 (8), 1995.

use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

/// Factor from the estimated product to the limit. The surplus shows whether the storage has more room, and allows for
/// read times that vary.
const GAIN: f64 = 4.0;
/// Lower bound of the limit.
const LEAST_BYTES: u64 = 1 << 20;
/// Shorter reads do not count, because a longer read may be many requests, one after another.
const TELLING_BYTES: u64 = 128 << 10;
/// Weight of one slow read when it lowers the limit.
const WEIGHT: f64 = 1.0 / 8.0;

/// Limit on the bytes that are read at a time.
#[derive(Debug)]
pub struct Pace(Mutex<Estimate>);

#[derive(Debug)]
struct Estimate {
    limit_bytes: f64,
    /// Seconds of the fastest read.
    shortest: f64,
    /// Seconds per byte of the read that was fastest for its length.
    shortest_of_byte: f64,
}

impl Default for Pace {
    fn default() -> Self {
        let (shortest, shortest_of_byte) = (f64::MAX, f64::MAX);
        Self(Mutex::new(Estimate { limit_bytes: LEAST_BYTES as f64, shortest, shortest_of_byte }))
    }
}

impl Pace {
    fn lock(&self) -> MutexGuard<'_, Estimate> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns whether another read may begin while `reading_bytes` are being read.
    pub fn has_room(&self, reading_bytes: u64) -> bool {
        (reading_bytes as f64) < self.lock().limit_bytes
    }

    /// Notes a read that waited for storage. `reading_bytes` is how much was being read when it began, its own bytes
    /// included.
    pub fn note(&self, bytes: u64, reading_bytes: u64, took: Duration) {
        if bytes < TELLING_BYTES {
            return;
        }
        let (took, bytes, reading_bytes) = (took.as_secs_f64().max(1e-6), bytes as f64, reading_bytes as f64);
        let mut estimate = self.lock();
        estimate.shortest = estimate.shortest.min(took);
        estimate.shortest_of_byte = estimate.shortest_of_byte.min(took / bytes);
        // A longer read may take proportionally longer, or no longer than a short one.
        let shortest = estimate.shortest.max(estimate.shortest_of_byte * bytes);
        let room = GAIN * reading_bytes * (shortest / took).min(1.0);
        if room >= estimate.limit_bytes {
            estimate.limit_bytes = room;
        } else if room < reading_bytes {
            // If `room` is at least `reading_bytes`, too little was being read to show that the limit is too high.
            let limit_bytes = estimate.limit_bytes + WEIGHT * (room - estimate.limit_bytes);
            estimate.limit_bytes = limit_bytes.max(LEAST_BYTES as f64);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::VecDeque;

    use super::*;

    const MIB: u64 = 1 << 20;

    /// Reads as much as the pace allows from simulated storage. Each read takes at least `delay`, and the storage then
    /// delivers the bytes of one read after another. Returns the limit in bytes after each read.
    fn limits(delay: f64, bytes_per_second: f64, read_bytes: u64, reads: usize) -> Vec<f64> {
        let (pace, mut limits) = (Pace::default(), Vec::new());
        let (mut on_the_way, mut reading_bytes, mut now, mut is_free_at) = (VecDeque::new(), 0, 0.0_f64, 0.0);
        for _ in 0..reads {
            while pace.has_room(reading_bytes) {
                reading_bytes += read_bytes;
                is_free_at = (now + delay).max(is_free_at) + read_bytes as f64 / bytes_per_second;
                on_the_way.push_back((now, reading_bytes, is_free_at));
            }
            let (begun, beside_bytes, end) = on_the_way.pop_front().expect("there is always room for one");
            (now, reading_bytes) = (end, reading_bytes - read_bytes);
            pace.note(read_bytes, beside_bytes, Duration::from_secs_f64(end - begun));
            limits.push(pace.lock().limit_bytes);
        }
        limits
    }

    #[test]
    fn with_latency_alone_the_limit_quadruples_in_each_round() {
        let limits = limits(0.01, 1e12, MIB / 4, 100);
        for (read, least) in [(3, 4), (3 + 16, 16), (3 + 16 + 64, 64)] {
            assert!(limits[read] >= 0.99 * (least * MIB) as f64, "{read}: {}", limits[read]);
        }
    }

    #[test]
    fn with_limited_bandwidth_the_limit_is_a_few_bandwidth_delay_products() {
        for (delay, bytes_per_second) in [(0.002, 1e8), (0.002, 1e9), (0.01, 1e8), (0.02, 1e9)] {
            for read_bytes in [MIB / 4, MIB] {
                let limits = limits(delay, bytes_per_second, read_bytes, 500);
                // A read is in flight while the storage delivers the one before.
                let product = delay * bytes_per_second + read_bytes as f64;
                let range = product..=(4.5 * product).max(MIB as f64);
                assert!(range.contains(&limits[499]), "{delay} s, {bytes_per_second}/s: {}", limits[499]);
            }
        }
    }

    #[test]
    fn short_reads_do_not_count() {
        let pace = Pace::default();
        pace.note(1024, 64 * MIB, Duration::from_millis(1));
        assert!(!pace.has_room(LEAST_BYTES));
    }
}

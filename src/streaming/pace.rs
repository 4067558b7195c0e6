//! [`Pace`]: how many bytes a lead reads at a time.
//!
//! Reads that go on beside one that the consumer waits for take bandwidth from it, and what they bring may never be asked
//! for. Storage delivers nothing sooner when it has more requests than its bandwidth-delay product. The product is
//! estimated as in TCP Vegas: a read that took twice the shortest time found the storage twice as full as it need be.
//!
//! Brakmo and Peterson, "TCP Vegas", IEEE Journal on Selected Areas in Communications 13 (8), 1995.

use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

/// So many times the product is read at a time: more room than it shows is found this way, and times vary.
const GAIN: f64 = 4.0;
/// Bytes that are read at a time in any case.
const LEAST_BYTES: u64 = 1 << 20;
/// Shorter reads show nothing: a longer one may be many requests, one after another.
const TELLING_BYTES: u64 = 128 << 10;
/// How much of a change a read brings about that took longer than others.
const WEIGHT: f64 = 1.0 / 8.0;

/// How many bytes are read at a time.
#[derive(Debug)]
pub struct Pace(Mutex<Estimate>);

#[derive(Debug)]
struct Estimate {
    limit_bytes: f64,
    /// Seconds of the shortest read.
    shortest: f64,
    /// Seconds per byte of the read that was the shortest for its length.
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

    /// Returns whether another read may begin while so many bytes are being read.
    pub fn has_room(&self, reading_bytes: u64) -> bool {
        (reading_bytes as f64) < self.lock().limit_bytes
    }

    /// Notes a read that has waited for storage. `reading_bytes` were being read when it began, its own included.
    pub fn note(&self, bytes: u64, reading_bytes: u64, took: Duration) {
        if bytes < TELLING_BYTES {
            return;
        }
        let (took, bytes, reading_bytes) = (took.as_secs_f64().max(1e-6), bytes as f64, reading_bytes as f64);
        let mut estimate = self.lock();
        estimate.shortest = estimate.shortest.min(took);
        estimate.shortest_of_byte = estimate.shortest_of_byte.min(took / bytes);
        // A longer read takes as much longer, or as long.
        let shortest = estimate.shortest.max(estimate.shortest_of_byte * bytes);
        let room = GAIN * reading_bytes * (shortest / took).min(1.0);
        if room >= estimate.limit_bytes {
            estimate.limit_bytes = room;
        } else if room < reading_bytes {
            // Otherwise too little was being read to show that there is more room.
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

    /// Reads as much as is allowed at a time from storage that has each read on its way for a time, and then hands out the
    /// bytes of one after another. Returns the limit in bytes after each read.
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
    fn where_the_delay_alone_counts_the_limit_is_four_times_as_high_after_each_round() {
        let limits = limits(0.01, 1e12, MIB / 4, 100);
        for (read, least) in [(3, 4), (3 + 16, 16), (3 + 16 + 64, 64)] {
            assert!(limits[read] >= 0.99 * (least * MIB) as f64, "{read}: {}", limits[read]);
        }
    }

    #[test]
    fn where_bandwidth_is_short_no_more_is_read_than_a_few_times_its_product_with_the_delay() {
        for (delay, bytes_per_second) in [(0.002, 1e8), (0.002, 1e9), (0.01, 1e8), (0.02, 1e9)] {
            for read_bytes in [MIB / 4, MIB] {
                let limits = limits(delay, bytes_per_second, read_bytes, 500);
                // A read is on its way while the one before is handed out.
                let product = delay * bytes_per_second + read_bytes as f64;
                let range = product..=(4.5 * product).max(MIB as f64);
                assert!(range.contains(&limits[499]), "{delay} s, {bytes_per_second}/s: {}", limits[499]);
            }
        }
    }

    #[test]
    fn short_reads_show_nothing() {
        let pace = Pace::default();
        pace.note(1024, 64 * MIB, Duration::from_millis(1));
        assert!(!pace.has_room(LEAST_BYTES));
    }
}

//! Random pages of a file: whether they are in the page cache, and how fast storage delivers a missing one.

use std::time::{Duration, Instant};

use crate::mapped_file::{Opened, page_cache};
use crate::mix::{GAMMA, mix};
use crate::os::process::limits;

/// Number of pages to probe before a file is read ahead. One of them is the last page of the file: a partly read file is
/// usually cached up to some place.
const PROBED_PAGES: u64 = 4;
/// A program uses memory at about this rate.
const ENOUGH_BYTES_PER_SECOND: u64 = 4 << 30;
/// With a smaller window, no storage reaches that rate.
const LEAST_WINDOW_BYTES: u64 = 4 << 20;

/// Draws a number below `bound`. `bound` is not 0.
pub fn drawn(seed: u64, number: u64, bound: u64) -> u64 {
    mix(seed.wrapping_add(number.wrapping_mul(GAMMA))) % bound
}

/// Returns whether the page of a byte is cached. If the kernel does not tell, it counts as missing.
pub fn is_cached(opened: &Opened, offset: u64, seed: u64) -> bool {
    let by_probe = || page_cache::residency(opened, offset, 1, seed).is_ok_and(|found| found.fraction >= 1.0);
    page_cache::is_resident(opened, offset, 1).unwrap_or_else(by_probe)
}

/// Returns whether a file has uncached pages. `seed` picks the probed pages.
pub fn is_cold(opened: &Opened, seed: u64) -> bool {
    let size = opened.size();
    let offset = |probe| if probe == 0 { size - 1 } else { drawn(seed, probe, size) };
    !(0..PROBED_PAGES).all(|probe| is_cached(opened, offset(probe), seed))
}

/// Returns whether the kernel's own read-ahead delivers a cold file as fast as a program can use it.
///
/// The test reads the last page: a page in the middle would break the kernel's sequence. If the kernel keeps up, requests of
/// ours would slow the program down, because the kernel fills large folios by itself, and single pages on request. If
/// memory is short, the kernel's window would push out unused pages.
pub fn kernel_keeps_up(opened: &Opened, seed: u64) -> bool {
    // `Opened::widen_read_ahead` doubles it.
    let window_bytes = 2 * page_cache::read_ahead_bytes(opened).unwrap_or(0);
    let is_roomy = opened.size() <= limits::available_memory_bytes() / 2;
    if window_bytes < LEAST_WINDOW_BYTES || !is_roomy || !opened.may_read_from_cache() {
        return false;
    }
    let last = opened.size() - 1;
    let offset = if is_cached(opened, last, seed) { drawn(seed, PROBED_PAGES, opened.size()) } else { last };
    let begun = Instant::now();
    opened.exact_reader().read(offset, 1).is_ok() && is_enough(window_bytes, begun.elapsed())
}

/// Returns whether a window that takes this long arrives as fast as a program uses memory.
fn is_enough(window_bytes: u64, took: Duration) -> bool {
    took < Duration::from_secs_f64(window_bytes as f64 / ENOUGH_BYTES_PER_SECOND as f64)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_window_of_16_mib_may_take_3_9_ms() {
        assert!(is_enough(16 << 20, Duration::from_micros(3900)));
        assert!(!is_enough(16 << 20, Duration::from_micros(3910)));
    }
}

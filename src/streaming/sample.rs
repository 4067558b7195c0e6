//! Probes random pages of a file: whether they are in the page cache, and how fast storage delivers a missing one.

use std::time::{Duration, Instant};

use crate::mapped_file::{Opened, page_cache};
use crate::mix::{GAMMA, mix};
use crate::os::process::limits;

/// Number of pages to probe before a file is read ahead. The file's last page is always among them, because a partly
/// read file is usually cached up to some offset.
const PROBED_PAGES: u64 = 4;
/// Rate at which a program typically uses memory.
const ENOUGH_BYTES_PER_SECOND: u64 = 4 << 30;
/// With a smaller window, no storage reaches that rate.
const LEAST_WINDOW_BYTES: u64 = 4 << 20;

/// Draws a number below `bound`, which must not be 0.
pub fn drawn(seed: u64, number: u64, bound: u64) -> u64 {
    mix(seed.wrapping_add(number.wrapping_mul(GAMMA))) % bound
}

/// Returns whether the page that holds a byte is cached. If the kernel cannot tell, the page counts as missing.
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
/// The test reads the last page, because a read in the middle would break the kernel's sequence. If the kernel keeps
/// up, our requests would slow the program down: the kernel's read-ahead fills large folios, but a request fills single
/// pages. If memory is short, the kernel's window would evict pages that are not yet used.
pub fn kernel_keeps_up(opened: &Opened, seed: u64) -> bool {
    // `Opened::widen_read_ahead` doubles the window.
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

/// Returns whether a window that takes this long to arrive keeps up with a program's use of memory.
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

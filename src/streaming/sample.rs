//! Pages that are drawn at random, to learn whether a file is in the page cache.

use crate::mapped_file::{Opened, page_cache};
use crate::mix::{GAMMA, mix};

/// Draws a number below `bound`, which is not 0.
pub fn drawn(seed: u64, number: u64, bound: u64) -> u64 {
    mix(seed.wrapping_add(number.wrapping_mul(GAMMA))) % bound
}

/// Returns whether the page of a byte is cached. One that cannot be probed (NaN) counts as missing.
pub fn is_cached(opened: &Opened, offset: u64, seed: u64) -> bool {
    let by_probe = || page_cache::residency(opened, offset, 1, seed).is_ok_and(|found| found.fraction >= 1.0);
    page_cache::is_resident(opened, offset, 1).unwrap_or_else(by_probe)
}

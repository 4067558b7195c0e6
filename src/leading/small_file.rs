//! Files too small for read-ahead: one round of requests fetches them whole.

use crate::mapped_file::{Opened, page_cache};

use crate::streaming::sample;

/// Minimum length of the data of a file that is not small.
pub const LEAST_DATA_BYTES: u64 = 1 << 20;

/// Asks the kernel for the whole data of a small, cold file. On a local disk, the kernel's own read-ahead is enough.
/// `seed` picks the probed pages. Returns whether the file is small and has a page cache. Without a page cache a lead
/// is worthwhile: it reads all of a small file after the first tensor.
pub fn fetch_if_small(opened: &Opened, data_start: u64, seed: u64) -> bool {
    let data_bytes = opened.size().saturating_sub(data_start);
    let is_small = data_bytes < LEAST_DATA_BYTES && opened.may_read_from_cache();
    let is_slow = !opened.facts.identity.is_on_block_device();
    if is_small && is_slow && data_bytes > 0 && sample::is_cold(opened, seed) {
        page_cache::fetch_ahead(opened, data_start, data_bytes);
    }
    is_small
}

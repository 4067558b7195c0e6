//! Files for which a lead would come too late: the kernel brings all of them in one round of requests.

use crate::mapped_file::{Opened, page_cache};

use crate::streaming::sample;

/// Data of a file that is not small.
pub const LEAST_DATA_BYTES: u64 = 1 << 20;

/// Has the kernel read all of a cold file that is small. On a disk of this machine its own read-ahead is enough. `seed`
/// picks the pages that are probed. Returns whether the file is small and has a page cache: without one a lead pays, which
/// reads all of such a file behind the first tensor.
pub fn fetch_if_small(opened: &Opened, data_start: u64, seed: u64) -> bool {
    let data_bytes = opened.size().saturating_sub(data_start);
    let is_small = data_bytes < LEAST_DATA_BYTES && opened.may_read_from_cache();
    let is_slow = !opened.facts.identity.is_on_block_device();
    if is_small && is_slow && data_bytes > 0 && sample::is_cold(opened, seed) {
        page_cache::fetch_ahead(opened, data_start, data_bytes);
    }
    is_small
}

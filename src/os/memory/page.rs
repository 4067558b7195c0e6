//! Memory pages.

/// Returns the size of a memory page in bytes.
pub fn page_bytes() -> usize {
    rustix::param::page_size()
}

/// Widens `[offset, offset + length)` to whole pages, and returns it as `(start, length)`.
pub fn whole_pages(offset: usize, length: usize) -> (usize, usize) {
    let page = page_bytes();
    let start = offset - offset % page;
    let end = offset.saturating_add(length).div_ceil(page).saturating_mul(page);
    (start, end - start)
}

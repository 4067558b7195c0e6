//! Memory pages.

/// Bytes of a memory page.
pub fn page_bytes() -> usize {
    rustix::param::page_size()
}

/// `[offset, offset + length)` widened to whole pages, as `(start, length)`.
pub fn whole_pages(offset: usize, length: usize) -> (usize, usize) {
    let page = page_bytes();
    let start = offset - offset % page;
    let end = offset.saturating_add(length).div_ceil(page).saturating_mul(page);
    (start, end - start)
}

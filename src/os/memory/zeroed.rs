//! Memory of zeros.

use std::alloc::{Layout, alloc_zeroed};

use crate::allocate::OutOfMemory;

/// Returns `len` zeros. Unlike [`filled`](crate::allocate::filled), it leaves large memory untouched: its pages become
/// zeros at their first use.
pub fn zeroed(len: usize, purpose: &'static str) -> Result<Vec<u8>, OutOfMemory> {
    let failed = OutOfMemory { bytes: len, purpose };
    let layout = Layout::array::<u8>(len).map_err(|_| failed)?;
    if len == 0 {
        return Ok(Vec::new());
    }
    // SAFETY: the layout has a size, as `len` is not 0 (above).
    let start = unsafe { alloc_zeroed(layout) };
    if start.is_null() {
        return Err(failed);
    }
    // SAFETY: the global allocator returned `start` (not null) for this layout: `len` initialised bytes, aligned for
    // `u8`.
    Ok(unsafe { Vec::from_raw_parts(start, len, layout.size()) })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn zeroed_returns_the_requested_zeros_or_an_error() {
        for len in [0, 1, 4096, 1 << 20] {
            let mut bytes = zeroed(len, "a test").expect("little memory");
            assert_eq!(bytes, vec![0; len]);
            bytes.push(1);
            assert_eq!(bytes.len(), len + 1);
        }
        for len in [usize::MAX / 2, usize::MAX] {
            assert_eq!(zeroed(len, "a test"), Err(OutOfMemory { bytes: len, purpose: "a test" }));
        }
    }
}

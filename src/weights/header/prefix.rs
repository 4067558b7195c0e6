//! The length of the JSON, in the first 8 bytes of a file.

use super::error::{HeaderError, HeaderErrorKind};

/// Upstream's limit on the length of the JSON.
pub const MAX_HEADER_BYTES: u64 = 100_000_000;

/// Size of the length field.
pub const LENGTH_BYTES: u64 = 8;

/// Returns the length of the JSON, given the file's first bytes, so that the caller can read exactly that much.
pub fn header_bytes(prefix: &[u8], file_size: u64) -> Result<u64, HeaderError> {
    let prefix = prefix.first_chunk().filter(|_| file_size >= LENGTH_BYTES).ok_or_else(|| {
        let found = file_size.min(prefix.len() as u64);
        let detail = format!("header too small: found {found} bytes, expected at least {LENGTH_BYTES}");
        HeaderError::new(HeaderErrorKind::TooSmall, Some(0), detail)
    })?;
    let length = u64::from_le_bytes(*prefix);
    check_length(length, file_size)?;
    Ok(length)
}

pub(super) fn check_length(length: u64, file_size: u64) -> Result<(), HeaderError> {
    if length > MAX_HEADER_BYTES {
        let detail = format!("header too large: found {length} bytes, expected at most {MAX_HEADER_BYTES}");
        return Err(HeaderError::new(HeaderErrorKind::TooLarge, Some(0), detail));
    }
    let available = file_size.saturating_sub(LENGTH_BYTES);
    if length > available {
        let detail =
            format!("invalid header length: found {length} bytes, but the file has {available} after it");
        return Err(HeaderError::new(HeaderErrorKind::InvalidLength, Some(0), detail));
    }
    Ok(())
}

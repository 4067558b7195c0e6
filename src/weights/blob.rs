//! The checksum in a file name of the Hugging Face cache: `blobs/<sha256>`, or `blobs/<2 digits>/<sha256>` in the store
//! that repositories share. Small files are named by the SHA-1 of git instead, which is not a checksum of the bytes
//! alone.
//!
//! Source: `huggingface_hub`, `file_download.py` and `utils/_shared_blobs.py`.

use std::ffi::OsStr;
use std::path::Path;

use super::checksums::failure;
use crate::error::Error;

/// Returns the SHA-256 in a blob's name, given the blob's path without links.
pub fn sha256_in_name(path: &Path) -> Option<[u8; 32]> {
    let name = path.file_name()?.to_str()?;
    let folder = path.parent()?;
    let is_in_blobs = |folder: &Path| folder.file_name() == Some(OsStr::new("blobs"));
    let is_shared = || {
        let two = folder.file_name().and_then(OsStr::to_str);
        name.get(..2) == two && folder.parent().is_some_and(is_in_blobs)
    };
    if name.len() != 64 || !(is_in_blobs(folder) || is_shared()) {
        return None;
    }
    let mut sha256 = [0; 32];
    for (byte, pair) in sha256.iter_mut().zip(name.as_bytes().as_chunks::<2>().0) {
        let digit = |of: u8| match of {
            b'0'..=b'9' => Some(of - b'0'),
            b'a'..=b'f' => Some(of - b'a' + 10),
            _ => None,
        };
        *byte = digit(pair[0])? << 4 | digit(pair[1])?;
    }
    Some(sha256)
}

/// Returns the error for a blob whose bytes do not match its name.
pub fn mismatch(path: &Path, expected: [u8; 32], found: [u8; 32]) -> Error {
    let digits =
        |sha256: [u8; 32]| sha256.iter().fold(String::new(), |text, byte| format!("{text}{byte:02x}"));
    let (expected, found) = (digits(expected), digits(found));
    let detail = format!(
        "it has the sha256 {found}, expected {expected} as the Hugging Face cache calls it: delete it there, and \
         download it again"
    );
    failure(path, None, Some(0), Some((expected, found)), detail)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn blobs_are_named_by_their_sha256() {
        let name = format!("ab{}", "09".repeat(31));
        let found = sha256_in_name(Path::new(&format!("/c/models--o--n/blobs/{name}"))).expect("a blob");
        assert_eq!((found[0], found[1], found[31]), (0xab, 0x09, 0x09));
        assert_eq!(sha256_in_name(Path::new(&format!("/c/blobs/ab/{name}"))), Some(found));
    }

    #[test]
    fn other_names_have_no_checksum() {
        let name = "ab".repeat(32);
        for path in [
            format!("/c/{name}"),
            format!("/c/blobs/cd/{name}"),
            format!("/c/blobs/{}", "ab".repeat(20)),
            format!("/c/blobs/{}", name.to_uppercase()),
            format!("/c/blobs/{name}.incomplete"),
            format!("/c/blobs/{}", "gg".repeat(32)),
            format!("/c/blobs/{}", "é".repeat(32)),
            "blobs".into(),
            "/".into(),
        ] {
            assert_eq!(sha256_in_name(Path::new(&path)), None, "{path}");
        }
    }
}

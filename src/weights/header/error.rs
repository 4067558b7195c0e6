//! [`HeaderError`]: the rule that a header breaks, and the offset of the faulty byte.

use std::fmt;

use crate::allocate::OutOfMemory;

/// The rule that a header broke.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum HeaderErrorKind {
    /// The file is too short for the header's length field.
    TooSmall,
    /// The header's length exceeds `MAX_HEADER_BYTES`.
    TooLarge,
    /// The header's length exceeds the size of the file.
    InvalidLength,
    InvalidUtf8,
    /// Not JSON, or JSON of another structure.
    InvalidJson,
    /// An element type that the format does not have.
    UnknownDtype,
    /// A tensor name with a NUL character.
    InvalidName,
    /// A key that occurs twice in one object.
    Duplicate,
    /// A tensor that does not begin at the end of the previous tensor.
    InvalidOffsets,
    /// A shape whose number of elements or bits exceeds 64 bits.
    Overflow,
    /// Elements smaller than a byte that do not fill whole bytes.
    SubByte,
    /// A shape and element type that do not match the size of the data.
    InvalidSize,
    /// The last tensor does not end at the end of the file.
    IncompleteCover,
    /// The header may be valid, but there is no memory for it.
    NoMemory(OutOfMemory),
}

/// The reason why a header is rejected. `offset` counts bytes from the file's start.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct HeaderError {
    pub kind: HeaderErrorKind,
    pub offset: Option<u64>,
    pub detail: String,
}

impl HeaderError {
    pub(super) fn new(kind: HeaderErrorKind, offset: Option<u64>, detail: String) -> Self {
        Self { kind, offset, detail: clipped(detail) }
    }
}

impl From<OutOfMemory> for HeaderError {
    fn from(error: OutOfMemory) -> Self {
        Self::new(HeaderErrorKind::NoMemory(error), None, error.to_string())
    }
}

impl fmt::Display for HeaderError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.detail)?;
        self.offset.map_or(Ok(()), |offset| write!(f, " (at byte {offset})"))
    }
}

impl std::error::Error for HeaderError {}

/// Returns a name for a message: quoted, escaped, and short even if the name is megabytes long.
pub(in crate::weights) fn quoted(name: &str) -> String {
    const MAX_CHARS: usize = 100;
    match name.char_indices().nth(MAX_CHARS) {
        Some((end, _)) => format!("{:?}... ({} bytes)", &name[..end], name.len()),
        None => format!("{name:?}"),
    }
}

/// Returns a shape for a message.
pub(super) fn shape_text(shape: &[u64]) -> String {
    const MAX_DIMENSIONS: usize = 16;
    match shape.get(..MAX_DIMENSIONS) {
        Some(first) if shape.len() > MAX_DIMENSIONS => {
            format!("{first:?}... ({} dimensions)", shape.len())
        }
        _ => format!("{shape:?}"),
    }
}

/// Shortens a message, because serde's messages quote whole strings of the file.
fn clipped(mut text: String) -> String {
    const MAX_BYTES: usize = 2000;
    if text.len() > MAX_BYTES {
        let end = (0..=MAX_BYTES).rev().find(|&end| text.is_char_boundary(end)).unwrap_or(0);
        text.truncate(end);
        text.push_str("...");
    }
    text
}

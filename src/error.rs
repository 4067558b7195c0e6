//! The only error type of the core. Each variant keeps what a caller needs for handling it: path, operation, offset.
//! The binding turns it into Python exceptions (`python/error.rs`).

use std::fmt;
use std::path::{Path, PathBuf};

use crate::allocate::OutOfMemory;

pub type Result<T, E = Error> = std::result::Result<T, E>;

/// A failure. [`Error::message`] returns the text without the path, for exceptions that carry the path in a field of
/// their own (`OSError.filename`).
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum Error {
    /// A system call failed. `advice` is a remedy and may be empty. `path` is empty if the call did not concern a file.
    System { operation: &'static str, path: PathBuf, errno: i32, advice: String },
    /// Bytes of an open file were unreadable.
    MappedRead { path: PathBuf, offset: u64, length: u64, cause: ReadCause },
    /// The file is no longer the file that was opened.
    FileChanged { path: PathBuf, detail: String },
    /// A byte range that does not lie inside the file.
    OutOfRange { path: PathBuf, offset: u64, length: u64, size: u64 },
    /// The file's bytes break its format. `offset` counts bytes from the file's start.
    Format { path: PathBuf, offset: Option<u64>, detail: String },
    /// Not a valid safetensors file. It has a variant of its own because Python has a class for it.
    Safetensors { path: PathBuf, detail: String },
    /// Bytes do not match their checksum, or have none.
    Checksum(Box<ChecksumFailure>),
    /// The file was closed.
    Closed { path: PathBuf },
    /// A caller's argument is wrong.
    Argument { detail: String },
    /// A position outside a sequence.
    Index { detail: String },
    /// Memory could not be allocated.
    Memory(OutOfMemory),
    /// The memory is still in use by a view, or cannot be exported as one.
    Buffer { detail: String },
}

/// A checksum that does not match, is missing, or is malformed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ChecksumFailure {
    pub path: PathBuf,
    /// The tensor; `None` for the header, the whole file, or the checksum file.
    pub name: Option<String>,
    /// Offset of the bytes in the file.
    pub offset: Option<u64>,
    pub expected: Option<String>,
    pub found: Option<String>,
    pub detail: String,
}

/// The reason why bytes of an open file were unreadable.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ReadCause {
    /// The file is shorter than when it was opened.
    Truncated { size_at_open: u64, size_now: u64 },
    /// The file reports a sufficient size, but a read returned nothing.
    EndedEarly { size: u64 },
    /// The system's own error. `advice` may be empty.
    Io { errno: i32, advice: &'static str },
    /// User code touched unreadable bytes of a mapping, and zeros replaced them.
    Damaged { size_at_open: u64, to_end: bool },
}

impl Error {
    pub fn argument(detail: impl Into<String>) -> Self {
        Self::Argument { detail: detail.into() }
    }

    /// Returns the error for a failed system call. `path` is empty if the call did not concern a file.
    pub fn system(
        operation: &'static str,
        path: impl Into<PathBuf>,
        errno: i32,
        advice: impl Into<String>,
    ) -> Self {
        Self::System { operation, path: path.into(), errno, advice: advice.into() }
    }

    /// Returns the error for bytes that break the file's format, with their offset if it is known.
    pub fn format(
        path: impl Into<PathBuf>,
        offset: impl Into<Option<u64>>,
        detail: impl Into<String>,
    ) -> Self {
        Self::Format { path: path.into(), offset: offset.into(), detail: detail.into() }
    }

    /// Returns the error for a position outside a sequence.
    pub fn index(detail: impl Into<String>) -> Self {
        Self::Index { detail: detail.into() }
    }

    /// Returns whether the error concerns unreadable bytes in a range of the file.
    pub fn is_of_bytes(&self, offset: u64, len: u64) -> bool {
        let end = offset.saturating_add(len);
        matches!(self, Self::MappedRead { offset: from, length, .. } if *from < end && offset < from.saturating_add(*length))
    }

    /// Returns whether the file has changed, or is no longer at its path.
    pub fn is_change(&self) -> bool {
        matches!(self, Self::FileChanged { .. })
    }

    pub fn path(&self) -> Option<&Path> {
        match self {
            Self::System { path, .. }
            | Self::MappedRead { path, .. }
            | Self::FileChanged { path, .. }
            | Self::OutOfRange { path, .. }
            | Self::Format { path, .. }
            | Self::Safetensors { path, .. }
            | Self::Closed { path } => Some(path),
            Self::Checksum(failure) => Some(&failure.path),
            Self::Argument { .. } | Self::Index { .. } | Self::Memory(_) | Self::Buffer { .. } => None,
        }
    }

    /// Returns what happened, without the path.
    pub fn message(&self) -> String {
        match self {
            Self::System { operation, errno, advice, .. } => {
                let text = errno_text(*errno);
                let separator = if advice.is_empty() { "" } else { ": " };
                format!("{operation}: {text}{separator}{advice}")
            }
            Self::MappedRead { offset, length, cause, .. } => {
                format!("cannot read {length} bytes at offset {offset}: {cause}")
            }
            Self::OutOfRange { offset, length, size, .. } => format!(
                "{length} bytes at offset {offset} do not lie inside the file, which has {size} bytes"
            ),
            Self::Format { offset: Some(offset), detail, .. } => format!("{detail} (at byte {offset})"),
            Self::Closed { .. } => "the file is closed".into(),
            Self::Memory(error) => error.to_string(),
            Self::Checksum(failure) => failure.detail.clone(),
            Self::Format { detail, .. }
            | Self::FileChanged { detail, .. }
            | Self::Safetensors { detail, .. }
            | Self::Argument { detail }
            | Self::Index { detail }
            | Self::Buffer { detail } => detail.clone(),
        }
    }
}

impl From<OutOfMemory> for Error {
    fn from(error: OutOfMemory) -> Self {
        Self::Memory(error)
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.path() {
            Some(path) if !path.as_os_str().is_empty() => write!(f, "{}: {}", path.display(), self.message()),
            _ => f.write_str(&self.message()),
        }
    }
}

impl std::error::Error for Error {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            Self::MappedRead { cause, .. } => Some(cause),
            _ => None,
        }
    }
}

impl std::error::Error for ReadCause {}

impl fmt::Display for ReadCause {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Truncated { size_at_open, size_now } => write!(
                f,
                "the file was truncated from {size_at_open} to {size_now} bytes while it was open; \
                 write a new file and rename it over the old one instead"
            ),
            Self::EndedEarly { size } => write!(
                f,
                "the read returned no data although the file reports {size} bytes; \
                 the file system or its server is at fault"
            ),
            Self::Io { errno, advice } => {
                let separator = if advice.is_empty() { "" } else { ": " };
                write!(f, "{}{separator}{advice}", errno_text(*errno))
            }
            Self::Damaged { size_at_open, to_end } => {
                if *to_end {
                    write!(
                        f,
                        "the file of {size_at_open} bytes was truncated there, or its storage failed,"
                    )?;
                } else {
                    f.write_str("its storage failed")?;
                }
                f.write_str(
                    " while arrays or views of it were used; they hold zeros there now: drop them, and open the \
                     file again",
                )
            }
        }
    }
}

/// Returns the system's text for `errno`, without the number that Rust appends to it.
pub fn errno_text(errno: i32) -> String {
    let text = std::io::Error::from_raw_os_error(errno).to_string();
    match text.rfind(" (os error") {
        Some(end) => text[..end].to_owned(),
        None => text,
    }
}

#[cfg(test)]
mod tests {
    use std::error::Error as _;

    use super::*;

    #[test]
    fn the_cause_of_a_failed_read_is_its_source() {
        let cause = ReadCause::Truncated { size_at_open: 9, size_now: 4 };
        let error = Error::MappedRead { path: "/a".into(), offset: 4, length: 5, cause: cause.clone() };
        assert_eq!(error.source().map(ToString::to_string), Some(cause.to_string()));
        assert!(error.to_string().starts_with("/a: cannot read 5 bytes at offset 4: the file was truncated"));
        assert!(Error::argument("no").source().is_none());
    }

    #[test]
    fn an_error_names_its_path_and_its_byte() {
        assert_eq!(Error::format("/a", 7, "bad").to_string(), "/a: bad (at byte 7)");
        assert_eq!(Error::format("/a", None, "bad").message(), "bad");
        let system = Error::system("cannot open", "/a", 2, "look elsewhere");
        assert_eq!(system.to_string(), "/a: cannot open: No such file or directory: look elsewhere");
        assert_eq!(Error::system("cannot start", "", 11, "").path(), Some(Path::new("")));
    }
}

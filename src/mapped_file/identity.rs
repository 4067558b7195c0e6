//! Tells whether a file is still the file that was opened. The handler of bus errors cannot see every change: the rest
//! of the last page of a truncated file reads as zeros, and a file that is rewritten in place also changes under
//! private mappings.

use std::path::Path;

use crate::error::{Error, Result};
use crate::os::errno::Code;
use crate::os::file::open::{self, Identity};

/// Returns the identity of the file now at `path`, or the error number.
pub fn identity_at(path: &Path) -> Result<Identity, i32> {
    open::identity_at(path).map_err(Code::raw_os_error)
}

/// The error number for a path without a file.
pub const NOT_FOUND: i32 = Code::NOENT.raw_os_error();

/// Returns whether the error number means that a path no longer leads to a file.
pub fn is_gone(errno: i32) -> bool {
    [Code::NOENT, Code::NOTDIR, Code::STALE].map(Code::raw_os_error).contains(&errno)
}

/// Returns whether both are the same file, even if it was changed.
pub(super) fn is_same_file(one: &Identity, other: &Identity) -> bool {
    (one.device, one.inode) == (other.device, other.inode)
}

/// Returns whether the bytes are unchanged, judged by size and modification time.
pub(super) fn is_unchanged(known: &Identity, now: &Identity) -> bool {
    (known.size, known.modified) == (now.size, now.modified)
}

/// Returns whether each later state of the file has another ctime. If times are whole seconds, two states can share
/// one.
pub(super) fn tells_states_apart(identity: &Identity) -> bool {
    identity.changed.1 != 0
}

/// Returns an error that describes the file's change between `known` and `now`, or `None`.
pub(super) fn change(path: &Path, known: &Identity, now: &Identity) -> Option<Error> {
    let detail = if now.links == 0 && known.links > 0 {
        format!("it was deleted while it was open; expected a file of {} bytes of that name", known.size)
    } else if now.size < known.size {
        format!("it was truncated from {} to {} bytes while it was open", known.size, now.size)
    } else if now.size > known.size {
        format!(
            "it grew from {} to {} bytes; open it again, or call refresh() of a MappedFile, if it was appended to",
            known.size, now.size
        )
    } else if now.modified != known.modified {
        return Some(rewrite(path, known, now));
    } else {
        return None;
    };
    Some(changed(path, detail))
}

/// Returns the error for a file that was written to.
pub(super) fn rewrite(path: &Path, known: &Identity, now: &Identity) -> Error {
    let time = |(seconds, nanoseconds): (i64, i64)| format!("{seconds}.{nanoseconds:09}");
    let detail = format!(
        "it was written to while it was open, at {}; expected it as it was at {}; open it again (writers should \
         rename a new file over the old one)",
        time(now.modified),
        time(known.modified)
    );
    changed(path, detail)
}

/// Returns the error for a file that has changed.
pub(super) fn changed(path: &Path, detail: String) -> Error {
    Error::FileChanged { path: path.into(), detail }
}

//! Whether a file is still the one that was opened. The handler of bus errors cannot see everything: the rest of the
//! page in which a cut file ends reads as zeros, and a file that is rewritten in place changes under private
//! mappings as well.

use std::path::Path;

use crate::error::{Error, Result};
use crate::os::errno::Code;
use crate::os::file::open::{self, Identity};

/// Returns the identity of what `path` names now, else the error number.
pub fn identity_at(path: &Path) -> Result<Identity, i32> {
    open::identity_at(path).map_err(Code::raw_os_error)
}

/// The error number of a path that leads nowhere.
pub const NOT_FOUND: i32 = Code::NOENT.raw_os_error();

/// Returns whether the error number means that a path leads to no file any more.
pub fn is_gone(errno: i32) -> bool {
    [Code::NOENT, Code::NOTDIR, Code::STALE].map(Code::raw_os_error).contains(&errno)
}

/// Returns whether both are the same file, whatever was done to it.
pub(super) fn is_same_file(one: &Identity, other: &Identity) -> bool {
    (one.device, one.inode) == (other.device, other.inode)
}

/// Returns whether the bytes are the same, as far as size and time of change tell.
pub(super) fn is_unchanged(known: &Identity, now: &Identity) -> bool {
    (known.size, known.modified) == (now.size, now.modified)
}

/// Returns whether a later state of the file has another time of change. Where times are whole seconds, two can have the same.
pub(super) fn tells_states_apart(identity: &Identity) -> bool {
    identity.changed.1 != 0
}

/// Returns what happened to a file between `known` and `now`, as an error.
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

/// The error of a file that was written to.
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

/// The error of a file that has changed.
pub(super) fn changed(path: &Path, detail: String) -> Error {
    Error::FileChanged { path: path.into(), detail }
}

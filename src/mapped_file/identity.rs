//! Whether a file is still the one that was opened. The bus error handler cannot see everything: the
//! rest of the page in which a cut file ends reads as zeros, and a file that is rewritten in place
//! changes under private mappings as well.

use std::path::Path;

use crate::error::{Error, ReadCause, Result};
use crate::os::errno::{Code, describe};
use crate::os::file::open::{self, Identity};

use super::{MappedFile, Opened};

/// The identity of what `path` names now, else the error number.
pub fn identity_at(path: &Path) -> Result<Identity, i32> {
    open::identity_at(path).map_err(Code::raw_os_error)
}

/// The error number of a path that leads nowhere.
pub const NOT_FOUND: i32 = Code::NOENT.raw_os_error();

/// Whether the error number means that a path leads to no file any more.
pub fn is_gone(errno: i32) -> bool {
    [Code::NOENT, Code::NOTDIR, Code::STALE].map(Code::raw_os_error).contains(&errno)
}

impl Opened {
    /// After bytes were copied: were they the file's? A file that has been written to is not trusted,
    /// even if it is larger now: it may have been appended to, or cut and written anew.
    ///
    /// Positioned reads tell by themselves where a file ends: for them the kernel's knowledge is enough. A
    /// page of a mapping does not: what a server no longer has reads as zeros.
    pub(super) fn verify_copied(&self, offset: u64, length: u64) -> Result<()> {
        let known = self.facts.identity;
        if self.region.is_none()
            && open::known_size_and_change(self.file()) == Ok((known.size, known.modified))
        {
            return Ok(());
        }
        let now = self.identity_now()?;
        if now.size < offset + length {
            let cause = ReadCause::Truncated { size_at_open: known.size, size_now: now.size };
            return Err(Error::MappedRead { path: self.path.clone(), offset, length, cause });
        }
        if now.modified == known.modified && now.size == known.size {
            return Ok(());
        }
        Err(self.changed(&now).unwrap_or_else(|| self.rewritten(&now)))
    }

    /// After many ranges were copied: is the file still all there, and not rewritten?
    pub fn verify(&self) -> Result<()> {
        self.verify_copied(0, self.size())
    }

    /// [`Self::verify`] that asks the server in any case, for the end of a batch: what the kernel knows of a
    /// file that is not mapped may be as old as its time limit for attributes.
    pub fn verify_now(&self) -> Result<()> {
        let known = self.facts.identity;
        match open::size_and_change_now(self.file()) {
            Ok(now) if now == (known.size, known.modified) => Ok(()),
            Ok(_) => {
                // What the kernel knows is fresh now: this says what is wrong with it.
                self.verify()?;
                Err(self.rewritten(&self.identity_now()?))
            }
            Err(errno) => Err(self.cannot_stat(errno)),
        }
    }

    /// What the descriptor that is kept refers to.
    pub fn identity_now(&self) -> Result<Identity> {
        match open::identity(self.file()) {
            Ok((identity, _)) => Ok(identity),
            Err(errno) => Err(self.cannot_stat(errno)),
        }
    }

    fn cannot_stat(&self, errno: Code) -> Error {
        if errno == Code::STALE {
            return self.file_changed("the server has deleted or replaced it (ESTALE)".into());
        }
        Error::System {
            operation: "cannot stat the open file",
            path: self.path.clone(),
            errno: errno.raw_os_error(),
            advice: "the storage behind the file failed; open it again once it is back".into(),
        }
    }

    /// What differs between the file at opening and `now`, as an error.
    pub(super) fn changed(&self, now: &Identity) -> Option<Error> {
        let known = &self.facts.identity;
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
            return Some(self.rewritten(now));
        } else {
            return None;
        };
        Some(self.file_changed(detail))
    }

    pub(super) fn rewritten(&self, now: &Identity) -> Error {
        let time = |(seconds, nanoseconds): (i64, i64)| format!("{seconds}.{nanoseconds:09}");
        self.file_changed(format!(
            "it was written to while it was open, at {}; expected it as it was at {}; open it again \
             (writers should rename a new file over the old one)",
            time(now.modified),
            time(self.facts.identity.modified)
        ))
    }

    fn file_changed(&self, detail: String) -> Error {
        Error::FileChanged { path: self.path.clone(), detail }
    }
}

impl MappedFile {
    /// Is this still the file that was opened, and does its path still name it?
    pub fn check(&self) -> Result<()> {
        let opened = self.opened()?;
        let now = opened.identity_now()?;
        if !self.is_named {
            return opened.changed(&now).map_or_else(|| opened.check_views(), Err);
        }
        let at_path = open::identity_at(&self.absolute);
        // First: the old file has no name left then, and that would pass for a deletion.
        if at_path.is_ok_and(|found| (found.device, found.inode) != (now.device, now.inode)) {
            return Err(opened.file_changed("its path now names another file; open it again".into()));
        }
        if let Some(error) = opened.changed(&now) {
            return Err(error);
        }
        match at_path {
            Ok(_) => opened.check_views(),
            Err(errno) => {
                Err(opened.file_changed(format!("its path no longer leads to it: {}", describe(errno))))
            }
        }
    }
}

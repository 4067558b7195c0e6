//! Where a file is found again: at its path, or in a folder that nothing leads out of.

use std::os::fd::{OwnedFd, RawFd};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use crate::error::{Error, Result};
use crate::os::errno::Code;
pub use crate::os::file::beneath::Beside;
use crate::os::file::beneath::{self, ConfinedFolder, Refusal};
use crate::os::file::open::{self, Kind};

use super::{MappedFile, RequestedMode, mode};

/// A folder, opened once. Files are opened by its descriptor, and none that lies elsewhere, whatever their
/// names and links say.
#[derive(Debug)]
pub struct Folder {
    path: PathBuf,
    opened: ConfinedFolder,
}

/// How a file was named.
#[derive(Debug, Clone)]
pub enum Origin {
    /// By a path of the caller's own, whose links are followed.
    Path(PathBuf),
    /// By a name that is not to be trusted: in a file, say.
    Beneath(Arc<Folder>, PathBuf),
}

impl Folder {
    /// Opens a folder. Its links may lead into `also` as well, and into what `beside` names for its path.
    pub fn open(path: &Path, also: &[PathBuf], beside: impl FnOnce(&Path) -> Vec<Beside>) -> Result<Self> {
        let here = if path.as_os_str().is_empty() { Path::new(".") } else { path };
        let opened = ConfinedFolder::open(here, also, beside).map_err(|(path, errno)| Error::System {
            operation: "cannot open the folder",
            path,
            errno: errno.raw_os_error(),
            advice: String::new(),
        })?;
        Ok(Self { path: path.into(), opened })
    }

    /// As the caller named it.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// The names in it, in no order.
    pub fn names(&self) -> Result<Vec<std::ffi::OsString>> {
        self.opened.names().map_err(|errno| Error::System {
            operation: "cannot list the folder",
            path: self.path.clone(),
            errno: errno.raw_os_error(),
            advice: String::new(),
        })
    }

    fn open_file(&self, name: &Path) -> Result<OwnedFd> {
        let path = self.path.join(name);
        let system = |errno: Code, advice: String| Error::System {
            operation: "cannot open",
            path: path.clone(),
            errno: errno.raw_os_error(),
            advice,
        };
        self.opened.open_file(name).map_err(|refusal| match refusal {
            Refusal::Swapped => {
                let advice =
                    format!("it was replaced while it was opened, {} times in a row", beneath::MAX_SWAPS);
                system(Code::AGAIN, advice)
            }
            Refusal::System(errno) => system(errno, mode::open_advice(&path, errno)),
            Refusal::NotRegular(Kind::Other(name)) => system(Code::INVAL, mode::not_regular(name)),
            Refusal::NotRegular(_) => system(Code::ISDIR, "it is a directory, not a file".into()),
            Refusal::Outside(target) => {
                let allowed: Vec<_> = self.opened.allowed().map(|path| path.display().to_string()).collect();
                let advice = format!(
                    "it leads to {}, which is outside {}; if that is meant, name the folder that it leads \
                     into as cache_root",
                    target.display(),
                    allowed.join(" and "),
                );
                system(Code::XDEV, advice)
            }
        })
    }
}

impl Origin {
    pub fn open(&self, mode: RequestedMode) -> Result<MappedFile> {
        match self {
            Self::Path(path) => MappedFile::open(path, mode),
            Self::Beneath(folder, name) => MappedFile::open_beneath(folder, name, mode),
        }
    }
}

impl MappedFile {
    /// Opens a file of a folder: a name or a link that leads out of it is refused with EXDEV.
    pub fn open_beneath(folder: &Arc<Folder>, name: &Path, requested: RequestedMode) -> Result<Self> {
        let (path, origin) = (folder.path.join(name), Origin::Beneath(folder.clone(), name.into()));
        Self::of_regular(mode::regular(folder.open_file(name)?, &path)?, &path, origin, requested)
    }

    /// A file that someone has open for reading; the descriptor stays theirs. `path` is for messages, and for
    /// [`Self::check`].
    pub fn from_descriptor(descriptor: RawFd, path: &Path, requested: RequestedMode) -> Result<Self> {
        let copy = open::duplicate(descriptor).map_err(|errno| Error::System {
            operation: "cannot duplicate the descriptor",
            path: path.into(),
            errno: errno.raw_os_error(),
            advice: mode::open_advice(path, errno),
        })?;
        let absolute = std::path::absolute(path).unwrap_or_else(|_| path.into());
        let (copy, identity) = mode::regular(copy, path)?;
        // memfd_create(2), O_TMPFILE, deleted by now; or the path is made up.
        let is_named = open::identity_at(&absolute)
            .is_ok_and(|found| (found.device, found.inode) == (identity.device, identity.inode));
        let file = Self::of_regular((copy, identity), path, Origin::Path(absolute), requested)?;
        Ok(Self { is_named, ..file })
    }
}

/// Whether [`MappedFile::open_beneath`] fails with this number for what the name leads to: out of the folder,
/// in a circle, or to something that is no regular file.
pub fn is_refusal(errno: i32) -> bool {
    [Code::XDEV, Code::LOOP, Code::INVAL, Code::ISDIR, Code::NAMETOOLONG]
        .map(Code::raw_os_error)
        .contains(&errno)
}

/// Whether a path leads to a directory, its links followed.
pub fn is_directory(path: &Path) -> bool {
    open::kind_at(path) == Ok(Kind::Directory)
}

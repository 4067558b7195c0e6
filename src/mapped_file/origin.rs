//! [`Origin`]: the place of a file, for opening it again. Either a path, or a name in a confined folder.

use std::borrow::Cow;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};

use crate::error::{Error, Result};
use crate::os::errno::{Code, system};
pub use crate::os::file::beneath::Beside;
use crate::os::file::beneath::{self, ConfinedFolder, Refusal};
use crate::os::file::open::{self, Identity, Kind};
use crate::os::process::fork;

use super::given_path::GivenPath;
use super::mode;

/// A folder, opened once. Its files are opened by its descriptor. Names and links that lead out of it are rejected.
#[derive(Debug)]
pub struct Folder {
    pub path: GivenPath,
    /// `None` once closed.
    opened: Mutex<Option<Arc<ConfinedFolder>>>,
}

/// The place of a file.
#[derive(Debug, Clone)]
pub enum Origin {
    /// A path from the caller. Links are followed.
    Path(GivenPath),
    /// An untrusted name in a folder, for example an entry of a checkpoint's index.
    Beneath(Arc<Folder>, PathBuf),
}

impl Origin {
    /// Returns the origin of a path from the caller.
    pub fn of(path: &Path) -> Self {
        Self::Path(GivenPath::new(path))
    }

    pub fn path(&self) -> Cow<'_, GivenPath> {
        match self {
            Self::Path(path) => Cow::Borrowed(path),
            Self::Beneath(folder, name) => Cow::Owned(folder.path.map(|folder| folder.join(name))),
        }
    }

    /// Returns the identity of the file at this place now, if there is a file. Opens nothing.
    pub(super) fn identity(&self) -> Option<Identity> {
        match self {
            Self::Path(path) => open::identity_at(&path.absolute).ok(),
            Self::Beneath(folder, name) => folder.opened().ok()?.identity(name).ok(),
        }
    }

    /// Returns the place of a file in the same folder, with `suffix` added to the name.
    pub fn with_suffix(&self, suffix: &str) -> Self {
        let longer = |path: &Path| {
            let mut name = path.as_os_str().to_owned();
            name.push(suffix);
            PathBuf::from(name)
        };
        match self {
            Self::Path(path) => Self::Path(path.map(longer)),
            Self::Beneath(folder, name) => Self::Beneath(folder.clone(), longer(name)),
        }
    }
}

impl Folder {
    /// Opens a folder. Its links may also lead into the folders of `also` and `beside`.
    pub fn open(path: &Path, also: &[PathBuf], beside: impl FnOnce(&Path) -> Vec<Beside>) -> Result<Self> {
        let here = if path.as_os_str().is_empty() { Path::new(".") } else { path };
        let opened = ConfinedFolder::open(here, also, beside)
            .map_err(|(path, errno)| system("cannot open the folder", path, errno, ""))?;
        Ok(Self { path: GivenPath::new(path), opened: Mutex::new(Some(Arc::new(opened))) })
    }

    /// Closes the descriptors, because open ones would prevent unmounting the file system.
    pub(super) fn close(&self) {
        drop(fork::with_lock(&self.opened, Option::take));
    }

    fn opened(&self) -> Result<Arc<ConfinedFolder>> {
        fork::with_lock(&self.opened, |opened| opened.clone())
            .ok_or_else(|| Error::Closed { path: self.path.given.to_path_buf() })
    }

    /// Returns the names in the folder, in no particular order.
    pub fn names(&self) -> Result<Vec<std::ffi::OsString>> {
        self.opened()?.names().map_err(|errno| system("cannot list the folder", &*self.path.given, errno, ""))
    }

    pub(super) fn open_file(&self, name: &Path) -> Result<OwnedFd> {
        let path = self.path.given.join(name);
        let opened = self.opened()?;
        opened.open_file(name).map_err(|refusal| {
            let (errno, advice) = match refusal {
                Refusal::Swapped => {
                    let times = beneath::MAX_SWAPS;
                    (Code::AGAIN, format!("it was replaced while it was opened, {times} times in a row"))
                }
                Refusal::System(errno) => (errno, mode::open_advice(&path, errno)),
                Refusal::NotRegular(Kind::Directory) => (Code::ISDIR, "it is a directory, not a file".into()),
                Refusal::NotRegular(kind) => (Code::INVAL, mode::not_regular(kind)),
                Refusal::Outside(target) => {
                    let allowed: Vec<_> =
                        opened.allowed().map(|path| path.display().to_string()).collect();
                    let advice = format!(
                        "it leads to {}, which is outside {}; if that is meant, open_checkpoint allows it with \
                         cache_root=\"{}\"",
                        target.display(),
                        allowed.join(" and "),
                        target.parent().unwrap_or(&target).display(),
                    );
                    (Code::XDEV, advice)
                }
            };
            system("cannot open", &path, errno, advice)
        })
    }
}

/// Returns whether this error number means that the name of a file was rejected: it leads out of the folder, in a
/// circle, or not to a regular file.
pub fn is_refusal(errno: i32) -> bool {
    [Code::XDEV, Code::LOOP, Code::INVAL, Code::ISDIR, Code::NAMETOOLONG]
        .map(Code::raw_os_error)
        .contains(&errno)
}

/// Returns whether a path leads to a directory. Links are followed.
pub fn is_directory(path: &Path) -> bool {
    open::identity_at(path).is_ok_and(|found| found.kind == Kind::Directory)
}

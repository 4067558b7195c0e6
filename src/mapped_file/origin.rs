//! How a file is found again: at its path, or in a folder that nothing leads out of.

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

/// A folder, opened once. Its files are opened by its descriptor; none that lies elsewhere is, whatever names and
/// links say.
#[derive(Debug)]
pub struct Folder {
    pub path: GivenPath,
    /// `None` once closed.
    opened: Mutex<Option<Arc<ConfinedFolder>>>,
}

/// How a file was named.
#[derive(Debug, Clone)]
pub enum Origin {
    /// By a path of the caller's own, whose links are followed.
    Path(GivenPath),
    /// By a name that is not to be trusted: in a file, say.
    Beneath(Arc<Folder>, PathBuf),
}

impl Origin {
    /// Returns the origin of a path of the caller's own.
    pub fn of(path: &Path) -> Self {
        Self::Path(GivenPath::new(path))
    }

    pub fn path(&self) -> Cow<'_, GivenPath> {
        match self {
            Self::Path(path) => Cow::Borrowed(path),
            Self::Beneath(folder, name) => Cow::Owned(folder.path.map(|folder| folder.join(name))),
        }
    }

    /// Returns the identity of the file that lies there now, if one does. Opens nothing.
    pub(super) fn identity(&self) -> Option<Identity> {
        match self {
            Self::Path(path) => open::identity_at(&path.absolute).ok(),
            Self::Beneath(folder, name) => folder.opened().ok()?.identity(name).ok(),
        }
    }

    /// Returns where a file lies whose name is that of this one and `suffix`.
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
    /// Opens a folder. Its links may lead into `also` as well, and into what `beside` names for its path.
    pub fn open(path: &Path, also: &[PathBuf], beside: impl FnOnce(&Path) -> Vec<Beside>) -> Result<Self> {
        let here = if path.as_os_str().is_empty() { Path::new(".") } else { path };
        let opened = ConfinedFolder::open(here, also, beside)
            .map_err(|(path, errno)| system("cannot open the folder", path, errno, ""))?;
        Ok(Self { path: GivenPath::new(path), opened: Mutex::new(Some(Arc::new(opened))) })
    }

    /// Closes the descriptors, which would keep a file system from being unmounted.
    pub(super) fn close(&self) {
        drop(fork::with_lock(&self.opened, Option::take));
    }

    fn opened(&self) -> Result<Arc<ConfinedFolder>> {
        fork::with_lock(&self.opened, |opened| opened.clone())
            .ok_or_else(|| Error::Closed { path: self.path.given.to_path_buf() })
    }

    /// Returns the names in it, in no order.
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
                        "it leads to {}, which is outside {}; if that is meant, name the folder that it leads \
                         into as cache_root",
                        target.display(),
                        allowed.join(" and "),
                    );
                    (Code::XDEV, advice)
                }
            };
            system("cannot open", &path, errno, advice)
        })
    }
}

/// Returns whether a file of a folder is refused with this number because of what its name leads to: out of the
/// folder, in a circle, or to something that is no regular file.
pub fn is_refusal(errno: i32) -> bool {
    [Code::XDEV, Code::LOOP, Code::INVAL, Code::ISDIR, Code::NAMETOOLONG]
        .map(Code::raw_os_error)
        .contains(&errno)
}

/// Returns whether a path leads to a directory, its links followed.
pub fn is_directory(path: &Path) -> bool {
    open::identity_at(path).is_ok_and(|found| found.kind == Kind::Directory)
}

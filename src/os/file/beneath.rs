//! Opens files of a folder so that no name and no link leads out of it.
//!
//! Checking a path proves nothing: a link may replace it before the open. The folder is therefore opened once, and
//! everything else by its descriptor, in one of two ways:
//!
//! 1. by openat2(2) with `RESOLVE_BENEATH`, which the kernel guarantees;
//! 2. by a walk: each component is opened by the descriptor of the one before it (`O_PATH | O_NOFOLLOW`), links are
//!    read and followed here, and `..` goes back to a descriptor that was passed on the way in.
//!
//! The walk takes over where openat2 is missing (before Linux 5.6, and in sandboxes that answer ENOSYS or EPERM),
//! where it cannot guarantee a `..` because something was renamed or mounted meanwhile, anywhere on the system
//! (EAGAIN), and where a link leaves the folder (EXDEV) and may come back to another one that is allowed. Nothing
//! outside is opened, not even to inspect it.
//!
//! A file is opened by `O_PATH` first, which reads nothing and wakes no device or FIFO, and for reading only once
//! it is known to be a regular file.

use std::collections::VecDeque;
use std::ffi::{OsStr, OsString};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Component, Path, PathBuf};

use rustix::fs::{Dir, FileType, Mode, OFlags, ResolveFlags};
use rustix::io::Errno;

use super::open::{self, Identity, Kind, retry, retry_interrupted};

/// Upper bound of links followed, as in the kernel (path_resolution(7)).
const MAX_LINKS: usize = 40;
/// Upper bound of lookups of a file that keeps being replaced between its two openings.
pub const MAX_SWAPS: usize = 3;

const LOOK: OFlags = OFlags::PATH.union(OFlags::CLOEXEC);
const READ: OFlags = OFlags::RDONLY
    .union(OFlags::CLOEXEC)
    .union(OFlags::NONBLOCK)
    .union(OFlags::NOCTTY)
    .union(OFlags::NOFOLLOW);

/// A folder, and the other folders that its links may lead into.
#[derive(Debug)]
pub struct ConfinedFolder {
    /// Folders in which files may lie. The first one holds the folder itself.
    roots: Vec<Root>,
    /// Path of the folder from the first root.
    base: PathBuf,
}

#[derive(Debug)]
struct Root {
    descriptor: OwnedFd,
    canonical: PathBuf,
    /// The absolute path as the caller spelled it: links may use that spelling.
    named: PathBuf,
}

/// Why a file was not opened.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Refusal {
    System(Errno),
    /// The name leads out of the folder, to this path as far as the links show.
    Outside(PathBuf),
    NotRegular(Kind),
    /// The file was replaced between its two openings, [`MAX_SWAPS`] times in a row.
    Swapped,
}

impl From<Errno> for Refusal {
    fn from(errno: Errno) -> Self {
        Self::System(errno)
    }
}

/// A folder beside the one that is opened, named from there: `../../blobs` is two levels up.
///
/// It is reached by descriptors alone, and a link is not followed: a path that was inspected could lead elsewhere
/// by the time that it is opened.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Beside {
    pub levels_up: usize,
    pub name: OsString,
    /// A regular file that the folder must contain in order to count.
    pub marker: Option<OsString>,
}

impl ConfinedFolder {
    /// Opens a folder, by a path that the caller vouches for; its links are followed. Links may lead into `also`,
    /// which the caller vouches for, and into those folders that `beside` names for the folder's path without
    /// links, up to the first that is not there. On failure says which of the paths it was.
    pub fn open(
        path: &Path,
        also: &[PathBuf],
        beside: impl FnOnce(&Path) -> Vec<Beside>,
    ) -> Result<Self, (PathBuf, Errno)> {
        let own = Root::open(path).map_err(|errno| (path.to_owned(), errno))?;
        let canonical = own.canonical.clone();
        let mut roots = Vec::with_capacity(1 + also.len());
        for place in beside(&canonical) {
            let Some(root) = own.beside(&place) else { break };
            roots.push(root);
        }
        for other in also {
            roots.push(Root::open(other).map_err(|errno| (other.clone(), errno))?);
        }
        // The widest root that contains the folder makes the folder's own root unnecessary.
        let holder = roots.iter().enumerate().filter(|(_, root)| canonical.starts_with(&root.canonical));
        match holder.min_by_key(|(_, root)| root.canonical.as_os_str().len()).map(|(index, _)| index) {
            Some(index) => roots.swap(0, index),
            None => roots.insert(0, own),
        }
        let base = canonical.strip_prefix(&roots[0].canonical).unwrap_or(Path::new("")).to_owned();
        Ok(Self { roots, base })
    }

    /// Folders in which its files may lie.
    pub fn allowed(&self) -> impl Iterator<Item = &Path> {
        self.roots.iter().map(|root| root.canonical.as_path())
    }

    /// Returns the names in the folder.
    pub fn names(&self) -> Result<Vec<OsString>, Errno> {
        let list = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let root = self.roots[0].descriptor.as_fd();
        let folder = match open_beneath(root, &self.base, list) {
            Err(errno) if leaves_it_to_the_walk(errno) => match self.walk(&self.base) {
                Ok(found) => retry(|| rustix::fs::openat(&found.file, c".", list, Mode::empty()))?,
                Err(Refusal::System(errno)) => return Err(errno),
                Err(_) => return Err(Errno::XDEV),
            },
            found => found?,
        };
        let mut names = Vec::new();
        for entry in Dir::new(folder)? {
            let entry = entry?;
            let name = entry.file_name().to_bytes();
            if name != b"." && name != b".." {
                names.push(OsString::from_vec(name.to_vec()));
            }
        }
        Ok(names)
    }

    /// Opens a regular file of the folder for reading.
    pub fn open_file(&self, name: &Path) -> Result<OwnedFd, Refusal> {
        let path = self.base.join(name);
        for _ in 0..MAX_SWAPS {
            if let Some(file) = self.try_open(&path)? {
                return Ok(file);
            }
        }
        Err(Refusal::Swapped)
    }

    /// Opens a regular file; `None` if it was replaced meanwhile.
    fn try_open(&self, path: &Path) -> Result<Option<OwnedFd>, Refusal> {
        let root = self.roots[0].descriptor.as_fd();
        let looked = match open_beneath(root, path, LOOK) {
            Err(errno) if leaves_it_to_the_walk(errno) => return self.try_open_by_walking(path),
            looked => regular(looked?.as_fd())?,
        };
        match open_beneath(root, path, READ.difference(OFlags::NOFOLLOW)) {
            Err(errno) if leaves_it_to_the_walk(errno) => self.try_open_by_walking(path),
            file => same(file?, &looked),
        }
    }

    fn try_open_by_walking(&self, path: &Path) -> Result<Option<OwnedFd>, Refusal> {
        let found = self.walk(path)?;
        let seen = regular(found.file.as_fd())?;
        let (folder, name) = (found.folder.as_fd(), found.name.as_os_str());
        match retry(|| rustix::fs::openat(folder, name, READ, Mode::empty())) {
            // A link has replaced the file.
            Err(Errno::LOOP) => Ok(None),
            Err(Errno::AGAIN) => same(open::wait_and_open(found.file.as_fd())?, &seen),
            file => same(file?, &seen),
        }
    }

    fn walk(&self, path: &Path) -> Result<WalkEnd, Refusal> {
        let mut pending: VecDeque<OsString> = components(path).collect();
        let mut at = Place::Inside(Vec::new(), &self.roots[0]);
        let mut links = 0;
        while let Some(name) = pending.pop_front() {
            at = match at {
                Place::Outside(passed) => self.entered(step(passed, &name)),
                Place::Inside(mut passed, root) if name == ".." => match passed.pop() {
                    Some(_) => Place::Inside(passed, root),
                    None => self.entered(step(root.canonical.clone(), &name)),
                },
                Place::Inside(mut passed, root) => {
                    let folder = passed.last().map_or(root.descriptor.as_fd(), AsFd::as_fd);
                    let look = LOOK | OFlags::NOFOLLOW;
                    let found = retry(|| rustix::fs::openat(folder, name.as_os_str(), look, Mode::empty()))?;
                    let stat = retry(|| rustix::fs::fstat(&found))?;
                    match FileType::from_raw_mode(stat.st_mode) {
                        FileType::Symlink => {
                            links += 1;
                            if links > MAX_LINKS {
                                return Err(Errno::LOOP.into());
                            }
                            let target = rustix::fs::readlinkat(&found, c"", Vec::new())?;
                            let target = Path::new(OsStr::from_bytes(target.as_bytes()));
                            for (index, component) in components(target).enumerate() {
                                pending.insert(index, component);
                            }
                            if target.is_absolute() {
                                self.entered(PathBuf::from("/"))
                            } else {
                                Place::Inside(passed, root)
                            }
                        }
                        FileType::Directory => {
                            passed.push(found);
                            Place::Inside(passed, root)
                        }
                        _ if pending.is_empty() => {
                            let folder = retry(|| rustix::io::fcntl_dupfd_cloexec(folder, 0))?;
                            return Ok(WalkEnd { file: found, folder, name });
                        }
                        _ => return Err(Errno::NOTDIR.into()),
                    }
                }
            };
        }
        match at {
            Place::Outside(path) => Err(Refusal::Outside(path)),
            Place::Inside(passed, root) => {
                let last = passed.last().map_or(root.descriptor.as_fd(), AsFd::as_fd);
                let copy = || retry(|| rustix::io::fcntl_dupfd_cloexec(last, 0));
                Ok(WalkEnd { file: copy()?, folder: copy()?, name: ".".into() })
            }
        }
    }

    /// Position after a step to an absolute path: outside, unless the path is a root's. What is outside is only counted
    /// off, never looked at.
    fn entered(&self, path: PathBuf) -> Place<'_> {
        match self.roots.iter().find(|root| path == root.canonical || path == root.named) {
            Some(root) => Place::Inside(Vec::new(), root),
            None => Place::Outside(path),
        }
    }
}

impl Root {
    fn open(path: &Path) -> Result<Self, Errno> {
        let flags = LOOK | OFlags::DIRECTORY;
        let descriptor = retry(|| rustix::fs::open(path, flags, Mode::empty()))?;
        let named = std::path::absolute(path).unwrap_or_else(|_| path.into());
        let canonical = path_of(descriptor.as_fd()).map_or_else(|| canonical(path), Ok)?;
        Ok(Self { descriptor, canonical, named })
    }

    /// Opens a folder beside this one; `None` if it is missing or a link.
    fn beside(&self, place: &Beside) -> Option<Self> {
        let look = |folder: BorrowedFd<'_>, name: &OsStr| {
            let flags = LOOK | OFlags::DIRECTORY | OFlags::NOFOLLOW;
            retry(|| rustix::fs::openat(folder, name, flags, Mode::empty())).ok()
        };
        let mut holder = look(self.descriptor.as_fd(), OsStr::new("."))?;
        let mut canonical = self.canonical.clone();
        for _ in 0..place.levels_up {
            holder = look(holder.as_fd(), OsStr::new(".."))?;
            canonical.pop();
        }
        let descriptor = look(holder.as_fd(), &place.name)?;
        canonical.push(&place.name);
        if let Some(marker) = &place.marker {
            let flags = rustix::fs::AtFlags::SYMLINK_NOFOLLOW;
            let stat = retry(|| rustix::fs::statat(&descriptor, marker.as_os_str(), flags)).ok()?;
            if FileType::from_raw_mode(stat.st_mode) != FileType::RegularFile {
                return None;
            }
        }
        Some(Self { descriptor, named: canonical.clone(), canonical })
    }
}

/// Returns the path of the object behind a descriptor, if procfs tells it. Unlike a path that is resolved a second
/// time, it cannot name another object.
fn path_of(descriptor: BorrowedFd<'_>) -> Option<PathBuf> {
    let link = format!("/proc/self/fd/{}", std::os::fd::AsRawFd::as_raw_fd(&descriptor));
    let path = std::fs::read_link(link).ok().filter(|path| path.is_absolute())?;
    // For a folder that was deleted, or lies in another mount namespace, the answer is no path.
    let (here, there) = (rustix::fs::fstat(descriptor).ok()?, rustix::fs::stat(&path).ok()?);
    ((here.st_dev, here.st_ino) == (there.st_dev, there.st_ino)).then_some(path)
}

/// The end of a walk: the object, and how to open it for reading.
struct WalkEnd {
    file: OwnedFd,
    folder: OwnedFd,
    name: OsString,
}

/// The position of a walk: below a root, with the descriptors that it passed, or at a path outside.
enum Place<'f> {
    Inside(Vec<OwnedFd>, &'f Root),
    Outside(PathBuf),
}

fn step(mut path: PathBuf, name: &OsStr) -> PathBuf {
    if name == ".." {
        path.pop();
    } else {
        path.push(name);
    }
    path
}

fn components(path: &Path) -> impl Iterator<Item = OsString> {
    path.components().filter_map(|component| match component {
        Component::Normal(name) => Some(name.to_owned()),
        Component::ParentDir => Some("..".into()),
        Component::RootDir | Component::CurDir | Component::Prefix(_) => None,
    })
}

fn open_beneath(root: BorrowedFd<'_>, path: &Path, flags: OFlags) -> Result<OwnedFd, Errno> {
    let path = if path.as_os_str().is_empty() { Path::new(".") } else { path };
    let resolve = ResolveFlags::BENEATH | ResolveFlags::NO_MAGICLINKS;
    // Not retried after EAGAIN: while other processes keep renaming, every retry may fail, but the walk does not.
    retry_interrupted(|| rustix::fs::openat2(root, path, flags, Mode::empty(), resolve))
}

/// Returns whether an error of openat2(2) says nothing about the path, or only that it leaves the root (EXDEV).
/// The walk then decides, because it knows the other roots and where the path leads.
fn leaves_it_to_the_walk(errno: Errno) -> bool {
    matches!(errno, Errno::NOSYS | Errno::PERM | Errno::XDEV | Errno::AGAIN)
}

fn regular(file: BorrowedFd<'_>) -> Result<Identity, Refusal> {
    match open::identity(file)? {
        (identity, Kind::Regular) => Ok(identity),
        (_, kind) => Err(Refusal::NotRegular(kind)),
    }
}

fn same(file: OwnedFd, seen: &Identity) -> Result<Option<OwnedFd>, Refusal> {
    let now = regular(file.as_fd())?;
    Ok(((now.device, now.inode) == (seen.device, seen.inode)).then_some(file))
}

fn canonical(path: &Path) -> Result<PathBuf, Errno> {
    std::fs::canonicalize(path).map_err(|error| Errno::from_io_error(&error).unwrap_or(Errno::NOENT))
}

#[cfg(test)]
mod tests;

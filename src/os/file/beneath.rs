//! Opens files of a folder so that no name and no link can lead out of it.
//!
//! Checking a path proves nothing: a link may replace it before the open. So we open the folder once and reach
//! everything else by a walk from its descriptor. The walk opens each component relative to its parent's descriptor
//! (`O_PATH | O_NOFOLLOW`), reads and follows links itself, and for `..` returns to a descriptor that it passed on the
//! way in. If a link leads out of the folder, the walk only tracks the rest of the path by name; the path may come back
//! to an allowed folder. Nothing outside is opened, not even for inspection.
//!
//! openat2(2) with `RESOLVE_BENEATH` needs just as many calls, and cannot follow a link from one allowed folder to
//! another.
//!
//! The walk first opens a file with `O_PATH`, which reads nothing and wakes no device or FIFO. It opens the file for
//! reading only after it has verified that this is a regular file.

use std::collections::VecDeque;
use std::ffi::{OsStr, OsString};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::{Component, Path, PathBuf};

use rustix::fs::{Dir, Mode, OFlags};
use rustix::io::Errno;

use super::open::{self, Identity, Kind, retry};

/// Maximum number of links followed, as in the kernel (path_resolution(7)).
const MAX_LINKS: usize = 40;
/// Maximum number of lookups of a file that someone keeps replacing between its two openings.
pub const MAX_SWAPS: usize = 3;

const LOOK: OFlags = OFlags::PATH.union(OFlags::CLOEXEC).union(OFlags::NOFOLLOW);
const READ: OFlags = OFlags::RDONLY
    .union(OFlags::CLOEXEC)
    .union(OFlags::NONBLOCK)
    .union(OFlags::NOCTTY)
    .union(OFlags::NOFOLLOW);

/// A folder, and the other folders that its links may lead into.
#[derive(Debug)]
pub struct ConfinedFolder {
    /// Folders that may contain the files. The first is the folder itself.
    roots: Vec<Root>,
}

#[derive(Debug)]
struct Root {
    descriptor: OwnedFd,
    canonical: PathBuf,
    /// The absolute path as the caller spelled it, because links may use that spelling.
    named: PathBuf,
}

/// The reason why a file was not opened.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Refusal {
    System(Errno),
    /// The name leads out of the folder. The path is its destination as far as the links show it.
    Outside(PathBuf),
    NotRegular(Kind),
    /// Someone replaced the file between its two openings, [`MAX_SWAPS`] times in a row.
    Swapped,
}

impl From<Errno> for Refusal {
    fn from(errno: Errno) -> Self {
        Self::System(errno)
    }
}

/// A folder near the opened folder, named relative to it: for example, `../../blobs` is two levels up.
///
/// It is reached only by descriptors, and must not be a link: a path that was inspected could lead elsewhere when it is
/// opened.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Beside {
    pub levels_up: usize,
    pub name: OsString,
    /// A regular file that the folder must contain to count.
    pub marker: Option<OsString>,
}

impl ConfinedFolder {
    /// Opens a folder by a path that the caller trusts, and follows its links. Links may lead into `also`, which the
    /// caller also trusts, and into the folders that `beside` names for the folder's path without links, up to the
    /// first missing one. An error names the path that failed.
    pub fn open(
        path: &Path,
        also: &[PathBuf],
        beside: impl FnOnce(&Path) -> Vec<Beside>,
    ) -> Result<Self, (PathBuf, Errno)> {
        let own = Root::open(path).map_err(|errno| (path.to_owned(), errno))?;
        let besides = beside(&own.canonical);
        let mut roots = vec![own];
        for place in besides {
            let Some(root) = roots[0].beside(&place) else { break };
            roots.push(root);
        }
        for other in also {
            roots.push(Root::open(other).map_err(|errno| (other.clone(), errno))?);
        }
        Ok(Self { roots })
    }

    /// Returns the folders that may contain its files, without those inside another one.
    pub fn allowed(&self) -> impl Iterator<Item = &Path> {
        let all = || self.roots.iter().map(|root| root.canonical.as_path());
        all().filter(move |path| !all().any(|other| path != &other && path.starts_with(other)))
    }

    /// Returns the names in the folder.
    pub fn names(&self) -> Result<Vec<OsString>, Errno> {
        let list = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let folder = retry(|| rustix::fs::openat(&self.roots[0].descriptor, c".", list, Mode::empty()))?;
        let mut names = Vec::new();
        for entry in Dir::new(folder)? {
            let entry = entry?;
            let name = OsStr::from_bytes(entry.file_name().to_bytes());
            if name != "." && name != ".." {
                names.push(name.to_owned());
            }
        }
        Ok(names)
    }

    /// Opens a regular file of the folder for reading.
    pub fn open_file(&self, name: &Path) -> Result<OwnedFd, Refusal> {
        self.open_by(name, open_seen)
    }

    /// Walks to a file and opens it. Repeats this if something else has taken the name in between.
    fn open_by(
        &self,
        name: &Path,
        open: impl Fn(BorrowedFd<'_>, &OsStr, &OwnedFd, &Identity) -> Result<Option<OwnedFd>, Refusal>,
    ) -> Result<OwnedFd, Refusal> {
        for _ in 0..MAX_SWAPS {
            if let Some(file) = self.walk(name, &open)? {
                return Ok(file);
            }
        }
        Err(Refusal::Swapped)
    }

    /// Returns the identity of the file at a name in the folder, without opening it.
    pub fn identity(&self, name: &Path) -> Result<Identity, Refusal> {
        self.walk(name, |_, _, _, seen| Ok(*seen))
    }

    /// Walks to something other than a folder, and returns the result of `reach` for its parent folder, its name there,
    /// and its descriptor and identity.
    fn walk<T>(
        &self,
        path: &Path,
        reach: impl FnOnce(BorrowedFd<'_>, &OsStr, &OwnedFd, &Identity) -> Result<T, Refusal>,
    ) -> Result<T, Refusal> {
        let mut pending = VecDeque::new();
        put_first(&mut pending, path);
        let mut at = Place::Inside(Vec::new(), &self.roots[0]);
        let mut links = 0;
        while let Some(name) = pending.pop_front() {
            at = match at {
                Place::Outside(passed) => self.entered(step(passed, &name), &mut pending),
                Place::Inside(mut passed, root) if name == ".." => match passed.pop() {
                    Some(_) => Place::Inside(passed, root),
                    None => self.entered(step(root.canonical.clone(), &name), &mut pending),
                },
                Place::Inside(mut passed, root) => {
                    let folder = passed.last().map_or(root.descriptor.as_fd(), AsFd::as_fd);
                    let found = retry(|| rustix::fs::openat(folder, name.as_os_str(), LOOK, Mode::empty()))?;
                    let seen = open::identity(found.as_fd())?;
                    match seen.kind {
                        Kind::Symlink => {
                            links += 1;
                            if links > MAX_LINKS {
                                return Err(Errno::LOOP.into());
                            }
                            let target = rustix::fs::readlinkat(&found, c"", Vec::new())?;
                            let target = Path::new(OsStr::from_bytes(target.as_bytes()));
                            put_first(&mut pending, target);
                            if target.is_absolute() {
                                self.entered(PathBuf::from("/"), &mut pending)
                            } else {
                                Place::Inside(passed, root)
                            }
                        }
                        Kind::Directory => {
                            passed.push(found);
                            Place::Inside(passed, root)
                        }
                        _ if pending.is_empty() => return reach(folder, &name, &found, &seen),
                        _ => return Err(Errno::NOTDIR.into()),
                    }
                }
            };
        }
        Err(match at {
            Place::Outside(path) => Refusal::Outside(path),
            Place::Inside(..) => Refusal::NotRegular(Kind::Directory),
        })
    }

    /// Returns the position after a step to an absolute path. If a root contains the path, the walk continues from that
    /// root. Otherwise it is outside: the walk tracks it by name and never looks at it.
    fn entered(&self, path: PathBuf, pending: &mut VecDeque<OsString>) -> Place<'_> {
        for root in &self.roots {
            let rest = path.strip_prefix(&root.canonical).or_else(|_| path.strip_prefix(&root.named));
            if let Ok(rest) = rest {
                put_first(pending, rest);
                return Place::Inside(Vec::new(), root);
            }
        }
        Place::Outside(path)
    }
}

impl Root {
    fn open(path: &Path) -> Result<Self, Errno> {
        let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let descriptor = retry(|| rustix::fs::open(path, flags, Mode::empty()))?;
        let named = std::path::absolute(path).unwrap_or_else(|_| path.into());
        let canonical = match path_of(descriptor.as_fd()) {
            Some(known) => known,
            None => std::fs::canonicalize(path)
                .map_err(|error| Errno::from_io_error(&error).unwrap_or(Errno::NOENT))?,
        };
        Ok(Self { descriptor, canonical, named })
    }

    /// Opens a folder near this one. `None` if it is missing or a link.
    fn beside(&self, place: &Beside) -> Option<Self> {
        let look = |folder: BorrowedFd<'_>, name: &OsStr| {
            retry(|| rustix::fs::openat(folder, name, LOOK | OFlags::DIRECTORY, Mode::empty())).ok()
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
            if Kind::from_raw_mode(stat.st_mode) != Kind::RegularFile {
                return None;
            }
        }
        Some(Self { descriptor, named: canonical.clone(), canonical })
    }
}

/// Returns the path of the object behind a descriptor, if procfs knows it. Unlike a path that is resolved a second
/// time, it cannot name another object.
pub fn path_of(descriptor: BorrowedFd<'_>) -> Option<PathBuf> {
    let link = format!("/proc/self/fd/{}", std::os::fd::AsRawFd::as_raw_fd(&descriptor));
    let path = std::fs::read_link(link).ok().filter(|path| path.is_absolute())?;
    // A folder that was deleted, or lies in another mount namespace, has no path here.
    let (here, there) = (rustix::fs::fstat(descriptor).ok()?, rustix::fs::stat(&path).ok()?);
    ((here.st_dev, here.st_ino) == (there.st_dev, there.st_ino)).then_some(path)
}

/// The position of a walk: inside a root, with the descriptors on the way, or at a path outside.
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

/// Puts the components of a path before the pending ones.
fn put_first(pending: &mut VecDeque<OsString>, path: &Path) {
    for component in path.components().rev() {
        if matches!(component, Component::Normal(_) | Component::ParentDir) {
            pending.push_front(component.as_os_str().to_owned());
        }
    }
}

/// Opens the file seen under a name for reading. `None` if something else has taken that name.
fn open_seen(
    folder: BorrowedFd<'_>,
    name: &OsStr,
    found: &OwnedFd,
    seen: &Identity,
) -> Result<Option<OwnedFd>, Refusal> {
    regular(seen)?;
    let file = match retry(|| rustix::fs::openat(folder, name, READ, Mode::empty())) {
        // A link has replaced the file.
        Err(Errno::LOOP) => return Ok(None),
        Err(Errno::AGAIN) => open::wait_and_open(found.as_fd())?,
        opened => opened?,
    };
    let now = open::identity(file.as_fd())?;
    regular(&now)?;
    Ok(((now.device, now.inode) == (seen.device, seen.inode)).then_some(file))
}

fn regular(file: &Identity) -> Result<(), Refusal> {
    if file.kind == Kind::RegularFile { Ok(()) } else { Err(Refusal::NotRegular(file.kind)) }
}

#[cfg(test)]
mod tests;

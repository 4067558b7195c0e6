//! Files of a folder, opened so that no name and no link leads out of it.
//!
//! A path that was checked is worth nothing: between the check and the opening a link may be put in its way.
//! So nothing is checked by path. The folder is opened once, everything else by its descriptor, by
//! openat2(2) with `RESOLVE_BENEATH`, which the kernel vouches for. Where that is missing (before Linux 5.6,
//! and in sandboxes that answer ENOSYS or EPERM), and for links that leave the folder and may come back to
//! one that is allowed too, each component is opened by the descriptor of the one before it
//! (`O_PATH | O_NOFOLLOW`), links are read and followed here, and `..` goes back to a descriptor that was
//! passed on the way in. Of what lies outside nothing is opened, not even to look what it is.
//!
//! What is found is opened by `O_PATH` first, which reads nothing and wakes no device or FIFO, and opened for
//! reading only once it is known to be a regular file.

use std::collections::VecDeque;
use std::ffi::{OsStr, OsString};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Component, Path, PathBuf};

use rustix::fs::{Dir, FileType, Mode, OFlags, ResolveFlags};
use rustix::io::Errno;

use super::pread::{self, Identity, Kind, retry};

/// As the kernel follows, path_resolution(7).
const MAX_LINKS: usize = 40;
/// A file may be replaced between the two times that it is opened: then it is looked up again.
const MAX_SWAPS: usize = 3;

const LOOK: OFlags = OFlags::PATH.union(OFlags::CLOEXEC);
const READ: OFlags = OFlags::RDONLY
    .union(OFlags::CLOEXEC)
    .union(OFlags::NONBLOCK)
    .union(OFlags::NOCTTY)
    .union(OFlags::NOFOLLOW);

/// A folder, and others that its links may lead into.
#[derive(Debug)]
pub struct Folder {
    /// The first one holds the folder.
    roots: Vec<Root>,
    /// Of the folder, seen from the first root.
    base: PathBuf,
    canonical: PathBuf,
}

#[derive(Debug)]
struct Root {
    descriptor: OwnedFd,
    canonical: PathBuf,
    /// As it was named, absolute: links may spell it so.
    named: PathBuf,
}

/// Why a file was not opened.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Refusal {
    System(Errno),
    /// Where it would have led, as far as the links themselves tell.
    Outside(PathBuf),
    NotRegular(Kind),
}

impl From<Errno> for Refusal {
    fn from(errno: Errno) -> Self {
        Self::System(errno)
    }
}

impl Folder {
    /// Opens a folder, by a path that the caller vouches for; its links are followed. On failure says which
    /// of the paths it was.
    pub fn open(path: &Path, also: &[PathBuf]) -> Result<Self, (PathBuf, Errno)> {
        let canonical = canonical(path).map_err(|errno| (path.to_owned(), errno))?;
        let mut roots = Vec::with_capacity(1 + also.len());
        for other in also {
            roots.push(Root::open(other).map_err(|errno| (other.clone(), errno))?);
        }
        // The widest root that holds the folder makes the folder's own needless.
        let holder = roots.iter().enumerate().filter(|(_, root)| canonical.starts_with(&root.canonical));
        match holder.min_by_key(|(_, root)| root.canonical.as_os_str().len()).map(|(index, _)| index) {
            Some(index) => roots.swap(0, index),
            None => roots.insert(0, Root::open(path).map_err(|errno| (path.to_owned(), errno))?),
        }
        let base = canonical.strip_prefix(&roots[0].canonical).unwrap_or(Path::new("")).to_owned();
        Ok(Self { roots, base, canonical })
    }

    /// Its path without links.
    pub fn canonical(&self) -> &Path {
        &self.canonical
    }

    /// Where its files may lie.
    pub fn allowed(&self) -> impl Iterator<Item = &Path> {
        self.roots.iter().map(|root| root.canonical.as_path())
    }

    /// The names in it.
    pub fn names(&self) -> Result<Vec<OsString>, Errno> {
        let list = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let root = self.roots[0].descriptor.as_fd();
        let folder = match open_beneath(root, &self.base, list) {
            Err(Errno::NOSYS | Errno::PERM) => match self.walk(&self.base) {
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
        Err(Refusal::System(Errno::AGAIN))
    }

    /// `None` where the file was replaced meanwhile.
    fn try_open(&self, path: &Path) -> Result<Option<OwnedFd>, Refusal> {
        let root = self.roots[0].descriptor.as_fd();
        match open_beneath(root, path, LOOK) {
            // XDEV: a link leads out, or is absolute. The walk knows the other roots, and where it leads.
            Err(Errno::NOSYS | Errno::PERM | Errno::XDEV) => {
                let found = self.walk(path)?;
                let seen = regular(found.file.as_fd())?;
                let (folder, name) = (found.folder.as_fd(), found.name.as_os_str());
                same(retry(|| rustix::fs::openat(folder, name, READ, Mode::empty()))?, &seen)
            }
            looked => {
                let seen = regular(looked?.as_fd())?;
                same(open_beneath(root, path, READ.difference(OFlags::NOFOLLOW))?, &seen)
            }
        }
    }

    fn walk(&self, path: &Path) -> Result<Found, Refusal> {
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
                            return Ok(Found { file: found, folder, name });
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
                Ok(Found { file: copy()?, folder: copy()?, name: ".".into() })
            }
        }
    }

    /// Outside, unless this very path is a root's. What is outside is only counted off, never looked at.
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
        Ok(Self { descriptor, canonical: canonical(path)?, named })
    }
}

/// What a walk found: the thing itself, and how to open it for reading.
struct Found {
    file: OwnedFd,
    folder: OwnedFd,
    name: OsString,
}

/// Where a walk is: below a root, by the descriptors that it passed, or at a path outside.
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
    retry(|| rustix::fs::openat2(root, path, flags, Mode::empty(), resolve))
}

fn regular(file: BorrowedFd<'_>) -> Result<Identity, Refusal> {
    match pread::identity(file)? {
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
mod tests {
    use super::*;
    use std::io::Read;
    use std::os::unix::fs::symlink;

    /// `root/folder` with files and links; `root/outside` with a secret.
    fn tree() -> (tempfile::TempDir, PathBuf) {
        let root = tempfile::tempdir().expect("a folder");
        let folder = root.path().join("folder");
        std::fs::create_dir_all(folder.join("below/deeper")).expect("made");
        std::fs::create_dir(root.path().join("outside")).expect("made");
        for (name, text) in [("folder/a", "a"), ("folder/below/b", "b"), ("outside/secret", "secret")] {
            std::fs::write(root.path().join(name), text).expect("written");
        }
        let outside = root.path().join("outside");
        for (link, target) in [
            ("inside", PathBuf::from("below/b")),
            ("up and back", "below/../below/deeper/../b".into()),
            ("chain", "inside".into()),
            ("out", "../outside/secret".into()),
            ("out and back", "../folder/a".into()),
            ("chain out", "out".into()),
            ("absolute out", outside.join("secret")),
            ("absolute in", folder.join("a")),
            ("folder out", outside),
            ("loop", "loop".into()),
            ("dangling", "nothing".into()),
            ("magic", "/proc/self/exe".into()),
            ("null", "/dev/null".into()),
        ] {
            symlink(target, folder.join(link)).expect("linked");
        }
        (root, folder)
    }

    fn text(file: OwnedFd) -> String {
        let mut text = String::new();
        std::fs::File::from(file).read_to_string(&mut text).expect("read");
        text
    }

    #[test]
    fn both_ways_open_the_same_and_refuse_the_same() {
        let (root, path) = tree();
        let folder = Folder::open(&path, &[]).expect("opened");
        let by_walking = |name: &Path| -> Result<OwnedFd, Refusal> {
            let found = folder.walk(name)?;
            let seen = regular(found.file.as_fd())?;
            let file = rustix::fs::openat(&found.folder, &found.name, READ, Mode::empty())?;
            same(file, &seen).map(|file| file.expect("not replaced"))
        };
        for (name, content) in
            [("a", "a"), ("below/b", "b"), ("inside", "b"), ("up and back", "b"), ("chain", "b")]
        {
            assert_eq!(folder.open_file(Path::new(name)).map(text), Ok(content.into()), "{name}");
            assert_eq!(by_walking(Path::new(name)).map(text), Ok(content.into()), "{name}");
        }
        // To leave and come back is allowed: nothing outside is looked at.
        for name in ["out and back", "absolute in"] {
            assert_eq!(folder.open_file(Path::new(name)).map(text), Ok("a".into()), "{name}");
        }
        let outside = |name: &str| Refusal::Outside(root.path().join(name));
        for (name, refusal) in [
            ("../outside/secret", outside("outside/secret")),
            ("below/../../outside/secret", outside("outside/secret")),
            ("out", outside("outside/secret")),
            ("chain out", outside("outside/secret")),
            ("absolute out", outside("outside/secret")),
            ("folder out/secret", outside("outside/secret")),
            ("magic", Refusal::Outside("/proc/self/exe".into())),
            ("null", Refusal::Outside("/dev/null".into())),
            ("..", Refusal::Outside(root.path().into())),
            ("below", Refusal::NotRegular(Kind::Directory)),
            (".", Refusal::NotRegular(Kind::Directory)),
            ("loop", Refusal::System(Errno::LOOP)),
            ("dangling", Refusal::System(Errno::NOENT)),
            ("a/b", Refusal::System(Errno::NOTDIR)),
        ] {
            assert_eq!(folder.open_file(Path::new(name)).map(text), Err(refusal.clone()), "{name}");
            assert_eq!(by_walking(Path::new(name)).map(text), Err(refusal), "{name}");
        }
    }

    #[test]
    fn links_may_lead_into_another_root() {
        let (root, path) = tree();
        let outside = root.path().join("outside");
        let folder = Folder::open(&path, std::slice::from_ref(&outside)).expect("opened");
        for name in ["out", "chain out", "absolute out", "folder out/secret"] {
            assert_eq!(folder.open_file(Path::new(name)).map(text), Ok("secret".into()), "{name}");
        }
        assert_eq!(folder.open_file(Path::new("a")).map(text), Ok("a".into()));
        assert!(matches!(folder.open_file(Path::new("null")), Err(Refusal::Outside(_))));
        let wide = Folder::open(&path, &[root.path().into()]).expect("opened");
        assert_eq!(wide.open_file(Path::new("out")).map(text), Ok("secret".into()));
        assert_eq!(wide.names().expect("listed").len(), folder.names().expect("listed").len());
    }

    #[test]
    fn another_root_may_be_spelled_by_a_link() {
        let (root, path) = tree();
        let alias = root.path().join("alias");
        symlink(root.path().join("outside"), &alias).expect("linked");
        symlink(alias.join("secret"), path.join("by alias")).expect("linked");
        let folder = Folder::open(&path, std::slice::from_ref(&alias)).expect("opened");
        assert_eq!(folder.open_file(Path::new("by alias")).map(text), Ok("secret".into()));
        assert_eq!(folder.open_file(Path::new("out")).map(text), Ok("secret".into()));
    }

    #[test]
    fn the_folder_stays_the_one_that_was_opened() {
        let (root, path) = tree();
        let folder = Folder::open(&path, &[]).expect("opened");
        std::fs::rename(&path, root.path().join("elsewhere")).expect("renamed");
        symlink(root.path().join("outside"), &path).expect("linked");
        assert_eq!(folder.open_file(Path::new("a")).map(text), Ok("a".into()));
        assert_eq!(folder.open_file(Path::new("secret")).map(text), Err(Refusal::System(Errno::NOENT)));
    }
}

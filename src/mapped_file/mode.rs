//! The mode of a file: a shared mapping, else a private read-only one, else positioned reads. The error number alone
//! decides to step down, never the file system's name.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::Path;

use crate::error::{Error, Result};
use crate::os::errno::{Code, describe};
use crate::os::file::open::{self, Identity, Kind};
use crate::os::file::pread::{self, Short};
use crate::os::memory::Uninit;
use crate::os::memory::map::{Mapping, Region};
use crate::os::process::limits;
use crate::words::words;

words! {
    /// How the caller wants a file to be opened.
    #[derive(Default)]
    pub enum RequestedMode as "mode" {
        /// The first of the others that works.
        #[default]
        Auto = "auto",
        Shared = "shared",
        Private = "private",
        Read = "read",
    }
}

/// How a file is open.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Mode {
    /// `MAP_SHARED`, read-only: the page cache itself.
    Shared,
    /// `MAP_PRIVATE`, read-only: the page cache as well, where a file system refuses `MAP_SHARED`.
    Private,
    /// Not mapped: positioned reads.
    Read,
}

impl From<Mode> for RequestedMode {
    fn from(mode: Mode) -> Self {
        match mode {
            Mode::Shared => Self::Shared,
            Mode::Private => Self::Private,
            Mode::Read => Self::Read,
        }
    }
}

impl Mode {
    pub fn word(self) -> &'static str {
        RequestedMode::from(self).word()
    }
}

/// A mode that works, with its mapping.
#[derive(Debug)]
pub(super) struct OpenedAs {
    pub mode: Mode,
    /// Why the first choice does not work; `None` if it does.
    pub reason: Option<String>,
    /// `None` in `Read` mode and for an empty file.
    pub region: Option<Region>,
}

/// Finds a mode that works: the one requested, or with `Auto` the first.
pub(super) fn find(
    file: BorrowedFd<'_>,
    path: &Path,
    size: u64,
    requested: RequestedMode,
) -> Result<OpenedAs> {
    let pinned = match requested {
        RequestedMode::Auto => return step_down(file, path, size),
        RequestedMode::Shared => Mode::Shared,
        RequestedMode::Private => Mode::Private,
        RequestedMode::Read => {
            verify_last_byte(file, path, size)?;
            return Ok(OpenedAs { mode: Mode::Read, reason: None, region: None });
        }
    };
    match map(file, path, size, pinned) {
        Ok(region) => Ok(OpenedAs { mode: pinned, reason: None, region }),
        Err(errno) => {
            // A file of /sys can be mapped in no mode, and read in none.
            verify_last_byte(file, path, size)?;
            Err(refused(path, size, pinned, errno))
        }
    }
}

fn step_down(file: BorrowedFd<'_>, path: &Path, size: u64) -> Result<OpenedAs> {
    let mut reasons = Vec::new();
    for mode in [Mode::Shared, Mode::Private] {
        match map(file, path, size, mode) {
            Ok(region) => return Ok(OpenedAs { mode, reason: join(&reasons), region }),
            Err(errno) => {
                reasons.push(why(size, mode, errno));
                // A private mapping needs the same address space, and fails at the same page.
                if matches!(errno, Code::NOMEM | Code::IO) {
                    break;
                }
            }
        }
    }
    verify_last_byte(file, path, size)?;
    Ok(OpenedAs { mode: Mode::Read, reason: join(&reasons), region: None })
}

/// Maps the file. An empty one needs no mapping.
fn map(file: BorrowedFd<'_>, path: &Path, size: u64, mode: Mode) -> Result<Option<Region>, Code> {
    if size == 0 {
        return Ok(None);
    }
    let len = isize::try_from(size).map_err(|_| Code::NOMEM)? as usize;
    let mapping = if mode == Mode::Shared { Mapping::Shared } else { Mapping::Private };
    open::retry(|| Region::map(file, path, len, mapping)).map(Some)
}

fn join(reasons: &[String]) -> Option<String> {
    (!reasons.is_empty()).then(|| reasons.join("; "))
}

fn why(size: u64, mode: Mode, errno: Code) -> String {
    let flag = if mode == Mode::Shared { "MAP_SHARED" } else { "MAP_PRIVATE" };
    let mut text = format!("{flag}: {}", describe(errno));
    if errno == Code::NOMEM {
        text.push_str(": ");
        text.push_str(&limits::explain_enomem(size));
    }
    text
}

/// The error of a requested mode that does not work.
fn refused(path: &Path, size: u64, mode: Mode, errno: Code) -> Error {
    let operation =
        if mode == Mode::Shared { "cannot map the file shared" } else { "cannot map the file private" };
    let advice = match errno {
        Code::NODEV if mode == Mode::Shared => {
            "this file system refuses MAP_SHARED (FUSE with direct_io does); use mode=\"auto\" or \"private\""
                .to_owned()
        }
        Code::NOMEM => {
            format!("{}; use mode=\"auto\" or \"read\"", limits::explain_enomem(size))
        }
        _ => "use mode=\"auto\" or \"read\"".to_owned(),
    };
    Error::System { operation, path: path.into(), errno: errno.raw_os_error(), advice }
}

/// Refuses a file whose last byte cannot be read: files of /sys report a size and have no such bytes.
fn verify_last_byte(file: BorrowedFd<'_>, path: &Path, size: u64) -> Result<()> {
    let Some(last) = size.checked_sub(1) else { return Ok(()) };
    let mut byte = [0];
    match pread::read_at(file, last, Uninit::of(&mut byte)) {
        Ok(()) => Ok(()),
        Err((_, Short::Errno(errno))) => Err(unreadable(path, errno)),
        Err((_, Short::EndOfFile)) => Err(Error::System {
            operation: "cannot open",
            path: path.into(),
            errno: Code::INVAL.raw_os_error(),
            advice: format!(
                "the file reports {size} bytes and does not have them, as those of /sys do; copy it to a regular file"
            ),
        }),
    }
}

/// Opens `path` for reading; refuses what is not a regular file, or reports a wrong size.
pub(super) fn open_regular(path: &Path) -> Result<(OwnedFd, Identity)> {
    let file = open::open(path).map_err(|errno| Error::System {
        operation: "cannot open",
        path: path.into(),
        errno: errno.raw_os_error(),
        advice: open_advice(path, errno),
    })?;
    regular(file, path)
}

/// Refuses an open file that is not a regular one, or that reports a wrong size.
pub(super) fn regular(file: OwnedFd, path: &Path) -> Result<(OwnedFd, Identity)> {
    let system = |operation, errno: Code, advice: String| Error::System {
        operation,
        path: path.into(),
        errno: errno.raw_os_error(),
        advice,
    };
    let (identity, kind) = open::identity(file.as_fd())
        .map_err(|errno| system("cannot stat", errno, open_advice(path, errno)))?;
    match kind {
        Kind::Regular => {}
        Kind::Directory => {
            return Err(system("cannot open", Code::ISDIR, "give the path of a file in it".into()));
        }
        Kind::Other(name) => return Err(system("cannot open", Code::INVAL, not_regular(name))),
    }
    if identity.size == 0 {
        let mut byte = [0];
        match pread::read_at(file.as_fd(), 0, Uninit::of(&mut byte)) {
            Err((_, Short::EndOfFile)) => {}
            Err((_, Short::Errno(errno))) => return Err(unreadable(path, errno)),
            Ok(()) => {
                let advice = "the file reports size 0 and yet can be read, as those of /proc do; copy it to a regular file";
                return Err(system("cannot open", Code::INVAL, advice.into()));
            }
        }
    }
    Ok((file, identity))
}

/// The error of a file that opens and cannot be read.
fn unreadable(path: &Path, errno: Code) -> Error {
    let advice = match errno {
        Code::INVAL | Code::IO | Code::PERM | Code::ACCESS if is_virtual(path) => {
            "it is a file of the kernel, not one of a disk; copy what can be read of it to a regular file"
                .into()
        }
        _ => open_advice(path, errno),
    };
    Error::System { operation: "cannot read", path: path.into(), errno: errno.raw_os_error(), advice }
}

fn is_virtual(path: &Path) -> bool {
    let absolute = std::path::absolute(path).unwrap_or_default();
    absolute.starts_with("/proc") || absolute.starts_with("/sys")
}

pub(super) fn not_regular(name: &str) -> String {
    format!("it is {name}; only regular files can be mapped")
}

pub(super) fn open_advice(path: &Path, errno: Code) -> String {
    match errno {
        Code::MFILE | Code::NFILE => limits::explain_nofile(),
        // A socket, the terminal of another session, a device without a driver.
        Code::NXIO | Code::NODEV => match open::kind_at(path) {
            Ok(Kind::Other(name)) => not_regular(name),
            _ => String::new(),
        },
        Code::STALE => "the server no longer knows the file; list the directory and open it again".into(),
        Code::IO => {
            "the disk, or the server or daemon behind this mount, failed; the kernel log says more (dmesg)"
                .into()
        }
        Code::PERM => {
            "the system forbids it even to the owner; look for security modules and immutable flags".into()
        }
        Code::NOTCONN => "the daemon behind this mount is gone; mount it again".into(),
        _ => String::new(),
    }
}

//! The mode of a file: a shared mapping, else a private read-only mapping, else positioned reads. Only the error number
//! decides whether to fall back, never the file system's name.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::Path;

use crate::error::{Error, Result};
use crate::os::errno::{Code, describe, storage_advice, system};
use crate::os::file::open::{self, Identity, Kind, kind_name};
use crate::os::file::pread::{self, Short};
use crate::os::memory::Uninit;
use crate::os::memory::map::{Mapping, Region};
use crate::os::process::limits;
use crate::words::words;

use super::given_path::GivenPath;

words! {
    /// How the caller wants a file to be opened.
    #[derive(Default)]
    pub enum RequestedMode as "mode" {
        /// The first of the other modes that works.
        #[default]
        Auto = "auto",
        Shared = "shared",
        Private = "private",
        Read = "read",
    }
}

words! {
    /// How a file is open. The strongest mode is last.
    #[derive(PartialOrd, Ord)]
    pub enum Mode as "mode" {
        /// Not mapped: positioned reads.
        Read = "read",
        /// `MAP_PRIVATE`, read-only: also the page cache, for file systems that reject `MAP_SHARED`.
        Private = "private",
        /// `MAP_SHARED`, read-only: the page cache itself.
        Shared = "shared",
    }
}

/// A mode that works, with its mapping.
#[derive(Debug)]
pub(super) struct OpenedAs {
    pub mode: Mode,
    /// Why the first choice does not work, or `None` if it works.
    pub reason: Option<String>,
    /// `None` in `Read` mode and for an empty file.
    pub region: Option<Region>,
}

/// Finds a mode that works: the requested mode, or with `Auto` the first one.
pub(super) fn find(
    file: BorrowedFd<'_>,
    path: &Path,
    size: u64,
    requested: RequestedMode,
) -> Result<OpenedAs> {
    let mappings: &[Mode] = match requested {
        RequestedMode::Auto => &[Mode::Shared, Mode::Private],
        RequestedMode::Shared => &[Mode::Shared],
        RequestedMode::Private => &[Mode::Private],
        RequestedMode::Read => &[],
    };
    let mut refusals = Vec::new();
    for &mode in mappings {
        match map(file, path, size, mode) {
            Ok(region) => return Ok(OpenedAs { mode, reason: reason(size, &refusals), region }),
            Err(errno) => refusals.push((mode, errno)),
        }
        // A private mapping needs the same address space, and fails at the same page.
        if matches!(refusals.last(), Some((_, Code::NOMEM | Code::IO))) {
            break;
        }
    }
    // A file of /sys cannot be mapped in any mode, and cannot be read.
    verify_last_byte(file, path, size)?;
    match (requested, refusals.first()) {
        (RequestedMode::Shared | RequestedMode::Private, Some(&(mode, errno))) => {
            Err(refused(path, size, mode, errno))
        }
        _ => Ok(OpenedAs { mode: Mode::Read, reason: reason(size, &refusals), region: None }),
    }
}

/// Maps the file. An empty file needs no mapping.
fn map(file: BorrowedFd<'_>, path: &Path, size: u64, mode: Mode) -> Result<Option<Region>, Code> {
    if size == 0 {
        return Ok(None);
    }
    let len = isize::try_from(size).map_err(|_| Code::NOMEM)? as usize;
    let mapping = if mode == Mode::Shared { Mapping::Shared } else { Mapping::Private };
    open::retry(|| Region::map(file, path, len, mapping)).map(Some)
}

/// Returns why modes do not work, or `None` if none was refused.
fn reason(size: u64, refusals: &[(Mode, Code)]) -> Option<String> {
    let why = |&(mode, errno): &(Mode, Code)| {
        let flag = if mode == Mode::Shared { "MAP_SHARED" } else { "MAP_PRIVATE" };
        let text = format!("{flag}: {}", describe(errno));
        if errno == Code::NOMEM { format!("{text}: {}", limits::explain_enomem(size)) } else { text }
    };
    let reasons: Vec<_> = refusals.iter().map(why).collect();
    (!reasons.is_empty()).then(|| reasons.join("; "))
}

/// Returns the error for a requested mode that does not work.
fn refused(path: &Path, size: u64, mode: Mode, errno: Code) -> Error {
    let operation =
        if mode == Mode::Shared { "cannot map the file shared" } else { "cannot map the file private" };
    let advice = match errno {
        Code::NODEV if mode == Mode::Shared => {
            "this file system refuses MAP_SHARED (FUSE with direct_io does); use the mode \"auto\" or \"private\""
                .to_owned()
        }
        Code::NOMEM => {
            format!("{}; use the mode \"auto\" or \"read\"", limits::explain_enomem(size))
        }
        _ => "use the mode \"auto\" or \"read\"".to_owned(),
    };
    system(operation, path, errno, advice)
}

/// Returns an error if the last byte is unreadable: files of /sys report a size that they do not have.
fn verify_last_byte(file: BorrowedFd<'_>, path: &Path, size: u64) -> Result<()> {
    let Some(last) = size.checked_sub(1) else { return Ok(()) };
    let mut byte = [0];
    match pread::read_at(file, last, Uninit::of(&mut byte)) {
        Ok(_) => Ok(()),
        Err((_, Short::Errno(errno))) => Err(unreadable(path, errno)),
        Err((_, Short::EndOfFile)) => {
            let advice = format!(
                "the file reports {size} bytes and does not have them, as those of /sys do; copy it to a regular file"
            );
            Err(system("cannot open", path, Code::INVAL, advice))
        }
    }
}

/// Opens `path` for reading. Rejects anything but a regular file, and a file that reports a wrong size.
pub(super) fn open_regular(path: &GivenPath) -> Result<(OwnedFd, Identity)> {
    let GivenPath { given, absolute } = path;
    let file = open::open(absolute)
        .map_err(|errno| system("cannot open", &**given, errno, open_advice(given, errno)))?;
    regular(file, given)
}

/// Rejects an open file that is not regular or that reports a wrong size. Its identity comes from the server, because
/// the kernel may remember the state before a rewrite.
pub(super) fn regular(file: OwnedFd, path: &Path) -> Result<(OwnedFd, Identity)> {
    let identity = open::identity_now(file.as_fd())
        .map_err(|errno| system("cannot stat", path, errno, open_advice(path, errno)))?;
    match identity.kind {
        Kind::RegularFile => {}
        Kind::Directory => {
            return Err(system("cannot open", path, Code::ISDIR, "give the path of a file in it"));
        }
        other => return Err(system("cannot open", path, Code::INVAL, not_regular(other))),
    }
    if identity.size == 0 {
        let mut byte = [0];
        match pread::read_at(file.as_fd(), 0, Uninit::of(&mut byte)) {
            Err((_, Short::EndOfFile)) => {}
            Err((_, Short::Errno(errno))) => return Err(unreadable(path, errno)),
            Ok(_) => {
                let advice = "the file reports size 0 and yet can be read, as those of /proc do; copy it to a regular file";
                return Err(system("cannot open", path, Code::INVAL, advice));
            }
        }
    }
    Ok((file, identity))
}

/// Returns the error for a file that opens but cannot be read.
fn unreadable(path: &Path, errno: Code) -> Error {
    let advice = match errno {
        Code::INVAL | Code::IO | Code::PERM | Code::ACCESS if is_virtual(path) => {
            "it is a file of the kernel, not one of a disk; copy what can be read of it to a regular file"
                .into()
        }
        _ => open_advice(path, errno),
    };
    system("cannot read", path, errno, advice)
}

fn is_virtual(path: &Path) -> bool {
    let absolute = std::path::absolute(path).unwrap_or_default();
    absolute.starts_with("/proc") || absolute.starts_with("/sys")
}

pub(super) fn not_regular(kind: Kind) -> String {
    format!("it is {}; only regular files can be mapped", kind_name(kind))
}

pub(super) fn open_advice(path: &Path, errno: Code) -> String {
    match errno {
        Code::MFILE | Code::NFILE => limits::explain_nofile(),
        // For example a socket, the terminal of another session, or a device without a driver.
        Code::NXIO | Code::NODEV => match open::identity_at(path).map(|found| found.kind) {
            Err(_) | Ok(Kind::RegularFile | Kind::Directory) => String::new(),
            Ok(other) => not_regular(other),
        },
        Code::PERM => {
            "the system forbids it even to the owner; look for security modules and immutable flags".into()
        }
        other => storage_advice(other).into(),
    }
}

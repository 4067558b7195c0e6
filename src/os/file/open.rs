//! Opening a file, and its identity.

use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd, RawFd};
use std::path::Path;
use std::time::Duration;

pub use rustix::fs::FileType as Kind;
use rustix::fs::{Access, AtFlags, CWD, Mode, OFlags, Stat, StatxFlags, StatxTimestamp};
use rustix::io::Errno;

/// Maximum number of tries of a call that is interrupted (EINTR) each time. Then the error is raised.
pub const EINTR_TRIES: u32 = 100;
/// Maximum number of tries of a call that fails with EAGAIN, for example because an NFSv4 server recalls a delegation.
/// The pause between tries doubles from 1 ms.
pub const EAGAIN_TRIES: u32 = 3;

/// Opens a path for reading. A FIFO does not block, and a terminal does not become the controlling terminal.
pub fn open(path: &Path) -> Result<OwnedFd, Errno> {
    let flags = OFlags::RDONLY | OFlags::CLOEXEC | OFlags::NONBLOCK | OFlags::NOCTTY;
    match retry(|| rustix::fs::open(path, flags, Mode::empty())) {
        Err(Errno::AGAIN) => {
            let look = OFlags::PATH | OFlags::CLOEXEC;
            wait_and_open(retry(|| rustix::fs::open(path, look, Mode::empty()))?.as_fd())
        }
        done => done,
    }
}

/// Opens the regular file behind a descriptor of `O_PATH`, after the system answered EAGAIN: another process has a
/// lease on it (fcntl(2); for example Samba takes leases) and was told to give it back. Waits for that, as open(2)
/// without `O_NONBLOCK` does, for at most /proc/sys/fs/lease-break-time seconds.
pub fn wait_and_open(file: BorrowedFd<'_>) -> Result<OwnedFd, Errno> {
    if identity(file)?.kind != Kind::RegularFile {
        return Err(Errno::AGAIN);
    }
    let link = format!("/proc/self/fd/{}", file.as_raw_fd());
    let flags = OFlags::RDONLY | OFlags::CLOEXEC | OFlags::NOCTTY;
    retry(|| rustix::fs::open(&link, flags, Mode::empty()))
}

/// Opens the file behind a descriptor once more, with its own offset and read-ahead state.
pub fn reopen(file: BorrowedFd<'_>) -> Result<OwnedFd, Errno> {
    open(format!("/proc/self/fd/{}", file.as_raw_fd()).as_ref())
}

/// Returns another descriptor of the same open file.
pub fn duplicate(descriptor: RawFd) -> Result<OwnedFd, Errno> {
    if descriptor < 0 {
        return Err(Errno::BADF);
    }
    // SAFETY: not -1 (above). Only fcntl(2) uses it, and fails with EBADF if it is not open.
    let file = unsafe { BorrowedFd::borrow_raw(descriptor) };
    retry(|| rustix::io::fcntl_dupfd_cloexec(file, 0))
}

/// Repeats a call after EINTR and EAGAIN, a bounded number of times.
pub fn retry<T>(mut call: impl FnMut() -> Result<T, Errno>) -> Result<T, Errno> {
    let (mut interrupted, mut busy) = (0, 0);
    loop {
        match call() {
            Err(Errno::INTR) if interrupted < EINTR_TRIES => interrupted += 1,
            Err(Errno::AGAIN) if busy < EAGAIN_TRIES => {
                std::thread::sleep(Duration::from_millis(1 << busy));
                busy += 1;
            }
            done => return done,
        }
    }
}

/// Distinguishes one file, and one state of its bytes, from another.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Identity {
    pub device: u64,
    pub inode: u64,
    pub size: u64,
    /// Time of the last change of its bytes. Programs can set it.
    pub modified: Time,
    /// Time of the last change of anything: bytes, times, name, owner. Programs cannot set it, but some file systems
    /// lack it.
    pub changed: Time,
    pub links: u64,
    pub kind: Kind,
}

/// Seconds and nanoseconds since 1970.
pub type Time = (i64, i64);

impl Identity {
    /// Returns whether the file is on a disk of this machine. Then this machine's clock sets its times, and the kernel
    /// knows them without asking a server. Also false for some local files: in memory, on btrfs, or under an overlay.
    pub fn is_on_block_device(&self) -> bool {
        rustix::fs::major(self.device) != 0
    }
}

/// Returns the present identity of an open file. On FUSE and NFS this asks the server once the file was read, because
/// fstat(2) also needs the access time, which is then out of date. Read-only mounts (FUSE) and `noatime` mounts (NFS)
/// keep no access time. There the answer may be some seconds old, or as old as the mount's attribute option allows.
pub fn identity(file: BorrowedFd<'_>) -> Result<Identity, Errno> {
    retry(|| rustix::fs::fstat(file)).map(from_stat)
}

/// Returns the present identity of an open file. FUSE and NFS ask the server, even if their own attributes are fresh.
pub fn identity_now(file: BorrowedFd<'_>) -> Result<Identity, Errno> {
    let known = identity(file)?;
    if known.kind != Kind::RegularFile || known.is_on_block_device() {
        return Ok(known);
    }
    let (size, modified, changed) = size_and_times(file, AtFlags::STATX_FORCE_SYNC)?;
    Ok(Identity { size, modified, changed, ..known })
}

/// Returns whether `path` names something on a disk of this machine, as [`Identity::is_on_block_device`] does. It sends
/// a server no more requests than an open would. True for a missing file.
pub fn is_on_block_device(path: &Path) -> bool {
    let found = rustix::fs::statx(CWD, path, AtFlags::STATX_DONT_SYNC, StatxFlags::empty());
    !found.is_ok_and(|found| found.stx_dev_major == 0)
}

/// Returns whether this process may read the file at `path`.
pub fn may_read(path: &Path) -> bool {
    let by_user = |flags| retry(|| rustix::fs::accessat(CWD, path, Access::READ_OK, flags));
    match by_user(AtFlags::EACCESS) {
        // Before Linux 5.8 the call checks only the real user.
        Err(Errno::NOSYS | Errno::INVAL) => by_user(AtFlags::empty()).is_ok(),
        found => found.is_ok(),
    }
}

/// Returns the identity of the file that is now at `path`.
pub fn identity_at(path: &Path) -> Result<Identity, Errno> {
    retry(|| rustix::fs::stat(path)).map(from_stat)
}

/// Returns the size that the kernel knows, however old, without a request to a server.
pub fn known_size(file: BorrowedFd<'_>) -> Result<u64, Errno> {
    size_and_times(file, AtFlags::STATX_DONT_SYNC).map(|(size, ..)| size)
}

/// Returns the size and modification time that the kernel knows. On FUSE and NFS they may be some seconds old.
pub fn known_size_and_change(file: BorrowedFd<'_>) -> Result<(u64, Time), Errno> {
    size_and_times(file, AtFlags::empty()).map(|(size, modified, _)| (size, modified))
}

/// Returns the size and modification time that the server knows. FUSE and NFS ask it, even if their own attributes are
/// fresh.
pub fn size_and_change_now(file: BorrowedFd<'_>) -> Result<(u64, Time), Errno> {
    size_and_times(file, AtFlags::STATX_FORCE_SYNC).map(|(size, modified, _)| (size, modified))
}

/// Returns size, time of the last change of bytes, and time of the last change of anything.
fn size_and_times(file: BorrowedFd<'_>, sync: AtFlags) -> Result<(u64, Time, Time), Errno> {
    let asked = StatxFlags::SIZE | StatxFlags::MTIME | StatxFlags::CTIME;
    match retry(|| rustix::fs::statx(file, c"", AtFlags::EMPTY_PATH | sync, asked)) {
        Ok(found) => {
            let time = |of: StatxTimestamp| (of.tv_sec, i64::from(of.tv_nsec));
            Ok((found.stx_size, time(found.stx_mtime), time(found.stx_ctime)))
        }
        // Before Linux 4.11, or in a sandbox that forbids the call.
        Err(Errno::NOSYS) => identity(file).map(|now| (now.size, now.modified, now.changed)),
        Err(errno) => Err(errno),
    }
}

// The fields have other types on other targets.
#[allow(clippy::unnecessary_cast, clippy::useless_conversion)]
fn from_stat(stat: Stat) -> Identity {
    Identity {
        device: stat.st_dev as u64,
        inode: stat.st_ino as u64,
        size: u64::try_from(stat.st_size).unwrap_or(0),
        modified: (stat.st_mtime as i64, stat.st_mtime_nsec as i64),
        changed: (stat.st_ctime as i64, stat.st_ctime_nsec as i64),
        links: stat.st_nlink as u64,
        kind: Kind::from_raw_mode(stat.st_mode),
    }
}

/// Returns the name, with its article, that messages use for a file type other than file and directory.
pub fn kind_name(kind: Kind) -> &'static str {
    match kind {
        Kind::Fifo => "a FIFO",
        Kind::Socket => "a socket",
        Kind::CharacterDevice => "a character device",
        Kind::BlockDevice => "a block device",
        _ => "not a file",
    }
}

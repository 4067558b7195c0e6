//! Opening a file, and its identity.

use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd, RawFd};
use std::path::Path;
use std::time::Duration;

pub use rustix::fs::FileType as Kind;
use rustix::fs::{Access, AtFlags, CWD, Mode, OFlags, Stat, StatxFlags, StatxTimestamp};
use rustix::io::Errno;

/// Upper bound of tries of a call that is interrupted (EINTR) each time; then the error is raised.
pub const EINTR_TRIES: u32 = 100;
/// Likewise of a call that is answered EAGAIN, as by an NFSv4 server while it recalls a delegation. The pause
/// between tries doubles from 1 ms.
pub const EAGAIN_TRIES: u32 = 3;

/// Opens a path for reading. A FIFO does not block, and a terminal does not become the controlling one.
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

/// Opens the regular file that a descriptor of `O_PATH` refers to, after the system answered EAGAIN: another process
/// has a lease on it (fcntl(2); Samba takes them) and was told to give it back. Waits for that, as open(2) without
/// `O_NONBLOCK` does, /proc/sys/fs/lease-break-time seconds at most.
pub fn wait_and_open(file: BorrowedFd<'_>) -> Result<OwnedFd, Errno> {
    if identity(file)?.kind != Kind::RegularFile {
        return Err(Errno::AGAIN);
    }
    let link = format!("/proc/self/fd/{}", file.as_raw_fd());
    let flags = OFlags::RDONLY | OFlags::CLOEXEC | OFlags::NOCTTY;
    retry(|| rustix::fs::open(&link, flags, Mode::empty()))
}

/// Opens the file behind a descriptor once more, with an offset and a read-ahead state of its own.
pub fn reopen(file: BorrowedFd<'_>) -> Result<OwnedFd, Errno> {
    open(format!("/proc/self/fd/{}", file.as_raw_fd()).as_ref())
}

/// Returns another descriptor of the same open file.
pub fn duplicate(descriptor: RawFd) -> Result<OwnedFd, Errno> {
    if descriptor < 0 {
        return Err(Errno::BADF);
    }
    // SAFETY: not -1 (above). It is used for fcntl(2) alone, which fails with EBADF where it is not open.
    let file = unsafe { BorrowedFd::borrow_raw(descriptor) };
    retry(|| rustix::io::fcntl_dupfd_cloexec(file, 0))
}

/// Makes a call again after EINTR and EAGAIN, a bounded number of times.
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

/// What tells one file, and one state of its bytes, from another.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Identity {
    pub device: u64,
    pub inode: u64,
    pub size: u64,
    /// Time of the last change of its bytes. Programs can set it.
    pub modified: Time,
    /// Time of the last change of anything: bytes, times, name, owner. Programs cannot set it, but not every file
    /// system has it.
    pub changed: Time,
    pub links: u64,
    pub kind: Kind,
}

/// Seconds and nanoseconds since 1970.
pub type Time = (i64, i64);

impl Identity {
    /// Returns whether the file is on a disk of this machine, so that its times come from the clock of this machine and
    /// the kernel knows them without asking. False for some files of which that is true as well: in memory, on btrfs,
    /// under an overlay.
    pub fn is_on_block_device(&self) -> bool {
        rustix::fs::major(self.device) != 0
    }
}

/// Returns the present identity of an open file. On FUSE and NFS this asks the server once the file was read, because
/// fstat(2) also wants the time of access, which is out of date then. Mounts that are read-only (FUSE) or `noatime` (NFS)
/// keep no such time: there the answer is up to some seconds old, or as old as their option for attributes says.
pub fn identity(file: BorrowedFd<'_>) -> Result<Identity, Errno> {
    retry(|| rustix::fs::fstat(file)).map(from_stat)
}

/// Returns the present identity of an open file. FUSE and NFS ask the server, however fresh their own knowledge is.
pub fn identity_now(file: BorrowedFd<'_>) -> Result<Identity, Errno> {
    let known = identity(file)?;
    if known.kind != Kind::RegularFile || known.is_on_block_device() {
        return Ok(known);
    }
    let (size, modified, changed) = size_and_times(file, AtFlags::STATX_FORCE_SYNC)?;
    Ok(Identity { size, modified, changed, ..known })
}

/// Returns whether what `path` names is on a disk of this machine, as [`Identity::is_on_block_device`] does. Asks no
/// server more than opening it would. True of what is not there.
pub fn is_on_block_device(path: &Path) -> bool {
    let found = rustix::fs::statx(CWD, path, AtFlags::STATX_DONT_SYNC, StatxFlags::empty());
    !found.is_ok_and(|found| found.stx_dev_major == 0)
}

/// Returns whether this process may read what `path` names.
pub fn may_read(path: &Path) -> bool {
    let by_user = |flags| retry(|| rustix::fs::accessat(CWD, path, Access::READ_OK, flags));
    match by_user(AtFlags::EACCESS) {
        // Before Linux 5.8 the call knows the real user alone.
        Err(Errno::NOSYS | Errno::INVAL) => by_user(AtFlags::empty()).is_ok(),
        found => found.is_ok(),
    }
}

/// Returns the identity of what `path` names now.
pub fn identity_at(path: &Path) -> Result<Identity, Errno> {
    retry(|| rustix::fs::stat(path)).map(from_stat)
}

/// Returns the size as the kernel knows it, however old that is: without a request to a server.
pub fn known_size(file: BorrowedFd<'_>) -> Result<u64, Errno> {
    size_and_times(file, AtFlags::STATX_DONT_SYNC).map(|(size, ..)| size)
}

/// Returns size and time of change as the kernel knows them: on FUSE and NFS up to some seconds old.
pub fn known_size_and_change(file: BorrowedFd<'_>) -> Result<(u64, Time), Errno> {
    size_and_times(file, AtFlags::empty()).map(|(size, modified, _)| (size, modified))
}

/// Returns size and time of change as the server knows them: FUSE and NFS ask it, however fresh their own knowledge
/// is.
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
        // Before Linux 4.11, or forbidden by a sandbox.
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

/// Returns what a message calls something that is neither a file nor a directory, with its article.
pub fn kind_name(kind: Kind) -> &'static str {
    match kind {
        Kind::Fifo => "a FIFO",
        Kind::Socket => "a socket",
        Kind::CharacterDevice => "a character device",
        Kind::BlockDevice => "a block device",
        _ => "not a file",
    }
}

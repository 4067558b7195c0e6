//! Passes open files to other processes of the same user over a socket with an abstract name (unix(7)).
//!
//! Such a name exists only in its network namespace, and is free once no process has the socket. The name protects
//! nothing: the first process to bind it owns it, and every user sees it. So both ends check each other's [`Rights`],
//! and they exchange nothing if any of them differ. Rights are read from /proc. It does not show Landlock rules, but a
//! process that restricts itself sets `NoNewPrivs`.

use std::io::{BufRead, Error, IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::path::Path;
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use rustix::io::{Errno, retry_on_intr};
use rustix::net::sockopt::{self, Timeout};
use rustix::net::{
    AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags, Shutdown, SocketAddrUnix, SocketFlags, SocketType,
};

use super::open;

/// Maximum number of files in one message.
const MAX_FILES: usize = 2;
/// Limit on waiting connections. A further process opens the file itself.
const BACKLOG: i32 = 256;
/// Time for which a process waits for an answer. The other process may still be opening the file, or be stopped.
const PATIENCE: Duration = if cfg!(test) { Duration::from_secs(600) } else { Duration::from_millis(500) };

/// A name at which other processes ask for files.
#[derive(Debug)]
pub struct Outlet {
    name: Vec<u8>,
    socket: OwnedFd,
    deadline: Mutex<Option<Instant>>,
}

impl Outlet {
    /// Binds a name. Fails with EADDRINUSE if another process has it.
    pub fn open(name: &[u8]) -> Result<Self, Errno> {
        let socket = socket(SocketFlags::empty())?;
        rustix::net::bind(&socket, &SocketAddrUnix::new_abstract_name(name)?)?;
        rustix::net::listen(&socket, BACKLOG)?;
        Ok(Self { name: name.into(), socket, deadline: Mutex::default() })
    }

    /// Sends a message, with the files that `files` returns, to each process with this process's [`Rights`]. Ends after
    /// [`Self::close`], at the deadline of [`Self::close_at`], or if descriptors run out.
    pub fn serve(&self, message: &[u8], files: impl Fn() -> Vec<OwnedFd>) {
        while self.waits()
            && let Ok(asking) = retry_on_intr(|| rustix::net::accept_with(&self.socket, SocketFlags::CLOEXEC))
        {
            if peer_of(&asking).is_ok_and(|peer| has_same_rights(&peer)) {
                // If the process has ended, nothing needs the files any more.
                let _ = send(&asking, message, &files());
            }
        }
        self.close();
    }

    /// Sets the time at which [`Self::serve`] ends, even if processes still ask.
    pub fn close_at(&self, deadline: Instant) {
        *self.deadline.lock().unwrap_or_else(PoisonError::into_inner) = Some(deadline);
        // The server may be waiting without a deadline. A connection wakes it.
        if connected(&self.name).is_err() {
            self.close();
        }
    }

    /// Limits the next wait to the time until the deadline. Returns false once the deadline has passed.
    fn waits(&self) -> bool {
        let deadline = *self.deadline.lock().unwrap_or_else(PoisonError::into_inner);
        deadline.is_none_or(|deadline| {
            let rest = deadline.saturating_duration_since(Instant::now());
            !rest.is_zero() && sockopt::set_socket_timeout(&self.socket, Timeout::Recv, Some(rest)).is_ok()
        })
    }

    /// Ends [`Self::serve`], and refuses connections from now on. The name is free once this socket is dropped and each
    /// forked child that inherited it has ended or called exec.
    pub fn close(&self) {
        let _ = rustix::net::shutdown(&self.socket, Shutdown::Both);
    }
}

/// Asks the process that owns a name for its message and files. Fails with ECONNREFUSED if no process owns the name,
/// with ECONNRESET if it was closed meanwhile, with EACCES if the process has other [`Rights`], and with EAGAIN if it
/// does not answer.
pub fn ask(name: &[u8], message: &mut [u8]) -> Result<Vec<OwnedFd>, Errno> {
    answer_of(&connected(name)?, message, PATIENCE)
}

/// Waits for the answer on a connection.
fn answer_of(socket: &OwnedFd, message: &mut [u8], patience: Duration) -> Result<Vec<OwnedFd>, Errno> {
    if !has_same_rights(&peer_of(socket)?) {
        return Err(Errno::ACCESS);
    }
    rustix::io::ioctl_fionbio(socket, false)?;
    sockopt::set_socket_timeout(socket, Timeout::Recv, Some(patience))?;
    receive(socket, message)
}

/// Connects without waiting for space in the queue, because the name may belong to another user who fills the queue.
fn connected(name: &[u8]) -> Result<OwnedFd, Errno> {
    let socket = socket(SocketFlags::NONBLOCK)?;
    retry_on_intr(|| rustix::net::connect(&socket, &SocketAddrUnix::new_abstract_name(name)?))?;
    Ok(socket)
}

fn socket(flags: SocketFlags) -> Result<OwnedFd, Errno> {
    rustix::net::socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC | flags, None)
}

/// Returns the effective user ID of this process.
pub fn this_user() -> u32 {
    rustix::process::geteuid().as_raw()
}

/// Returns the credentials of the process at the other end. Its ID is 0 if it is outside this PID namespace, a case
/// that rustix does not expect.
fn peer_of(socket: &OwnedFd) -> Result<libc::ucred, Errno> {
    let mut peer = libc::ucred { pid: 0, uid: u32::MAX, gid: u32::MAX };
    let mut len = size_of::<libc::ucred>() as libc::socklen_t;
    let (level, option, out) = (libc::SOL_SOCKET, libc::SO_PEERCRED, (&raw mut peer).cast());
    // SAFETY: `out` points to `len` writable bytes of `peer`, for which any bytes are valid; both are live.
    let failed = unsafe { libc::getsockopt(socket.as_raw_fd(), level, option, out, &raw mut len) };
    if failed == 0 {
        Ok(peer)
    } else {
        Err(Errno::from_io_error(&Error::last_os_error()).unwrap_or(Errno::IO))
    }
}

/// Returns whether a process acts for this user and has the same rights as this process.
fn has_same_rights(peer: &libc::ucred) -> bool {
    peer.uid == this_user()
        && peer.pid > 0
        && proc_shows_this_namespace()
        && Rights::of("self").is_some_and(|own| Rights::of(&peer.pid.to_string()) == Some(own))
}

/// Everything that decides which files a process may open.
#[derive(Debug, PartialEq)]
struct Rights {
    /// Mount namespace, user namespace and root, each as a device and an inode.
    places: [(u64, u64); 3],
    /// Users, groups, capabilities, seccomp and `NoNewPrivs`: lines of /proc/PID/status.
    status: Vec<String>,
    /// The label from SELinux, AppArmor or Smack.
    label: Option<Vec<u8>>,
}

impl Rights {
    /// Reads the rights of a process, given its ID or "self". `None` if reading is forbidden, or the process has ended.
    fn of(process: &str) -> Option<Self> {
        const FIELDS: [&str; 6] = ["Uid:", "Gid:", "Groups:", "Cap", "NoNewPrivs:", "Seccomp"];
        let folder = Path::new("/proc").join(process);
        let places = ["ns/mnt", "ns/user", "root"].map(|place| place_of(&folder.join(place)));
        let [Some(mounts), Some(user), Some(root)] = places else { return None };
        let status = std::fs::read(folder.join("status")).ok()?;
        let status = status.lines().map_while(Result::ok);
        let status = status.filter(|line| FIELDS.iter().any(|field| line.starts_with(field))).collect();
        let label = std::fs::read(folder.join("attr/current")).ok();
        Some(Self { places: [mounts, user, root], status, label })
    }
}

fn place_of(path: &Path) -> Option<(u64, u64)> {
    open::identity_at(path).ok().map(|found| (found.device, found.inode))
}

/// Returns the inode of the mount namespace of this process.
pub fn mount_namespace() -> Option<u64> {
    place_of(Path::new("/proc/self/ns/mnt")).map(|(_, inode)| inode)
}

/// Returns whether /proc shows this process's PID namespace. Otherwise an ID there belongs to another process.
fn proc_shows_this_namespace() -> bool {
    std::fs::read_link("/proc/self")
        .is_ok_and(|own| own.as_os_str() == std::process::id().to_string().as_str())
}

/// Returns whether a descriptor is open only for reading, through the page cache.
pub fn is_for_reading(file: BorrowedFd<'_>) -> bool {
    use rustix::fs::OFlags;
    rustix::fs::fcntl_getfl(file)
        .is_ok_and(|flags| !flags.intersects(OFlags::RWMODE | OFlags::PATH | OFlags::DIRECT))
}

fn send(socket: &OwnedFd, message: &[u8], files: &[OwnedFd]) -> Result<(), Errno> {
    let files: Vec<_> = files.iter().take(MAX_FILES).map(AsFd::as_fd).collect();
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(MAX_FILES))];
    let mut control = SendAncillaryBuffer::new(&mut space);
    if !files.is_empty() {
        control.push(SendAncillaryMessage::ScmRights(&files));
    }
    let flags = SendFlags::NOSIGNAL | SendFlags::DONTWAIT;
    retry_on_intr(|| rustix::net::sendmsg(socket, &[IoSlice::new(message)], &mut control, flags)).map(drop)
}

/// Receives a message of exactly this length, and its files.
fn receive(socket: &OwnedFd, message: &mut [u8]) -> Result<Vec<OwnedFd>, Errno> {
    let length = message.len();
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(MAX_FILES))];
    let mut control = RecvAncillaryBuffer::new(&mut space);
    let mut parts = [IoSliceMut::new(message)];
    let flags = RecvFlags::CMSG_CLOEXEC;
    let got = retry_on_intr(|| rustix::net::recvmsg(socket, &mut parts, &mut control, flags))?;
    let mut files = Vec::new();
    for part in control.drain() {
        if let RecvAncillaryMessage::ScmRights(passed) = part {
            files.extend(passed);
        }
    }
    match got.bytes {
        0 => Err(Errno::CONNRESET),
        bytes if bytes == length => Ok(files),
        _ => Err(Errno::PROTO),
    }
}

#[cfg(test)]
mod tests {
    use std::io::Read;
    use std::sync::{Arc, mpsc};

    use super::*;

    fn name(of: &str) -> Vec<u8> {
        format!("pagestream-test/{}/{of}", std::process::id()).into_bytes()
    }

    #[test]
    fn files_and_a_message_reach_each_process_until_the_name_is_free() {
        let name = name("files");
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("file");
        std::fs::write(&path, b"bytes").expect("written");
        let outlet = Arc::new(Outlet::open(&name).expect("free"));
        assert_eq!(Outlet::open(&name).err(), Some(Errno::ADDRINUSE));
        let serving = outlet.clone();
        let open = move || vec![OwnedFd::from(std::fs::File::open(&path).expect("opened"))];
        let server = std::thread::spawn(move || serving.serve(b"four", open));
        for _ in 0..3 {
            let mut message = [0; 4];
            let files = ask(&name, &mut message).expect("an answer");
            assert_eq!(&message, b"four");
            let mut text = String::new();
            for file in files {
                std::fs::File::from(file).read_to_string(&mut text).expect("read");
            }
            assert_eq!(text, "bytes");
        }
        assert_eq!(ask(&name, &mut [0; 5]).err(), Some(Errno::PROTO), "another length");
        outlet.close();
        server.join().expect("no panic");
        assert_eq!(ask(&name, &mut [0; 4]).err(), Some(Errno::CONNREFUSED));
    }

    #[test]
    fn a_name_is_free_at_the_deadline_despite_requests() {
        let name = name("deadline");
        let outlet = Arc::new(Outlet::open(&name).expect("free"));
        let serving = outlet.clone();
        let server = std::thread::spawn(move || serving.serve(b"four", Vec::new));
        assert!(ask(&name, &mut [0; 4]).is_ok());
        // By now, or soon, the server waits for the next process.
        outlet.close_at(Instant::now() + Duration::from_secs(3600));
        for _ in 0..3 {
            assert!(ask(&name, &mut [0; 4]).is_ok());
        }
        let waiting: Vec<_> = (0..10).map_while(|_| connected(&name).ok()).collect();
        outlet.close_at(Instant::now());
        server.join().expect("no panic");
        drop(waiting);
        assert_eq!(ask(&name, &mut [0; 4]).err(), Some(Errno::CONNREFUSED));
    }

    #[test]
    fn rights_are_those_of_the_process() {
        let own = Rights::of("self").expect("readable");
        assert_eq!(Rights::of(&std::process::id().to_string()), Some(Rights::of("self").expect("readable")));
        for field in ["Uid:", "Gid:", "Groups:", "CapEff:", "CapBnd:", "NoNewPrivs:", "Seccomp:"] {
            assert_eq!(own.status.iter().filter(|line| line.starts_with(field)).count(), 1, "{field}");
        }
        let other = |change: fn(&mut Rights)| {
            let mut changed = Rights::of("self").expect("readable");
            change(&mut changed);
            changed
        };
        assert_ne!(own, other(|rights| rights.places[1].1 += 1));
        assert_ne!(own, other(|rights| rights.label = Some(b"confined".to_vec())));
        assert_eq!(Rights::of("0"), None);
    }

    #[test]
    fn a_process_with_other_rights_neither_gives_nor_gets() {
        let own = libc::ucred { pid: std::process::id().cast_signed(), uid: this_user(), gid: 0 };
        assert!(has_same_rights(&own));
        assert!(!has_same_rights(&libc::ucred { uid: this_user().wrapping_add(1), ..own }));
        assert!(!has_same_rights(&libc::ucred { pid: 0, ..own }));
    }

    #[test]
    fn only_descriptors_for_plain_reading_are_accepted() {
        use rustix::fs::{Mode, OFlags};
        let folder = tempfile::tempdir_in("/dev/shm").expect("a folder");
        let path = folder.path().join("file");
        std::fs::write(&path, b"bytes").expect("written");
        let is_accepted = |flags: OFlags| {
            is_for_reading(rustix::fs::open(&path, flags, Mode::empty()).expect("opened").as_fd())
        };
        assert!(is_accepted(OFlags::RDONLY));
        assert!(is_accepted(OFlags::RDONLY | OFlags::NOATIME | OFlags::CLOEXEC));
        for flags in [OFlags::WRONLY, OFlags::RDWR, OFlags::PATH, OFlags::WRONLY | OFlags::APPEND] {
            assert!(!is_accepted(flags), "{flags:?}");
        }
    }

    #[test]
    fn a_slow_owner_of_the_name_is_awaited() {
        let name = name("later");
        let outlet = Arc::new(Outlet::open(&name).expect("free"));
        let socket = connected(&name).expect("there is room");
        let serving = outlet.clone();
        let server = std::thread::spawn(move || serving.serve(b"four", Vec::new));
        let mut message = [0; 4];
        assert!(answer_of(&socket, &mut message, PATIENCE).is_ok());
        assert_eq!(&message, b"four");
        outlet.close();
        server.join().expect("no panic");
    }

    #[test]
    fn a_name_with_a_full_queue_is_not_awaited() {
        let name = name("busy");
        let _outlet = Outlet::open(&name).expect("free");
        let waiting: Vec<_> =
            std::iter::from_fn(|| connected(&name).ok()).take(2 * BACKLOG as usize).collect();
        assert!(waiting.len() < 2 * BACKLOG as usize);
        // It would wait forever: the time for an answer begins later.
        let (done, answer) = mpsc::channel();
        std::thread::spawn(move || done.send(ask(&name, &mut [0; 4]).err()));
        assert_eq!(answer.recv_timeout(Duration::from_secs(60)), Ok(Some(Errno::AGAIN)));
    }

    #[test]
    fn a_silent_process_is_not_awaited_forever() {
        let name = name("silent");
        let outlet = Outlet::open(&name).expect("free");
        let ask_briefly = |socket: &OwnedFd| answer_of(socket, &mut [0; 4], Duration::from_millis(1)).err();
        assert_eq!(ask_briefly(&connected(&name).expect("there is room")), Some(Errno::AGAIN));
        let waiting = connected(&name).expect("there is room");
        drop(outlet);
        assert_eq!(answer_of(&waiting, &mut [0; 4], PATIENCE).err(), Some(Errno::CONNRESET));
        assert_eq!(ask(&name, &mut [0; 4]).err(), Some(Errno::CONNREFUSED));
    }
}

//! Passing open files to other processes of the same user, by name, without a file that names them.
//!
//! The name is an abstract one (unix(7)): it exists in the network namespace alone, and is gone with the last process that
//! has the socket, be it a child of a fork. It protects nothing: whoever comes first has it, all users see it, and containers
//! can share the network and nothing else. So both ends look at the user of the other, and at the files that it sees.
//!
//! A [`Sign`] is a name at which nobody answers: it tells others what this process does.

use std::io::{Error, IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::path::Path;
use std::sync::Mutex;
use std::time::{Duration, Instant};

use rustix::io::{Errno, retry_on_intr};
use rustix::net::sockopt::{self, Timeout};
use rustix::net::{
    AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags, Shutdown, SocketAddrUnix, SocketFlags, SocketType,
};

use super::open;
use crate::os::process::fork;

/// Upper bound of the files of one message.
const MAX_FILES: usize = 2;
/// Connections that wait to be answered. A process that would be one more opens the file itself.
const BACKLOG: i32 = 256;
/// How long the process that has the name is waited for. It may be opening the file still, or be stopped.
const PATIENCE: Duration = if cfg!(test) { Duration::from_secs(600) } else { Duration::from_millis(500) };
/// How long a process that did not answer is not asked again, for any name.
const SILENCE: Duration = Duration::from_secs(10);

/// The process that did not answer last, and when that was.
static SILENT: Mutex<Option<(libc::pid_t, Instant)>> = Mutex::new(None);

/// A name at which processes of this user ask for files.
#[derive(Debug)]
pub struct Outlet {
    name: Vec<u8>,
    socket: OwnedFd,
}

/// A name that says that this process does something, as long as it has this value.
#[derive(Debug)]
pub struct Sign {
    _socket: OwnedFd,
}

impl Sign {
    /// Takes a name. Fails with EADDRINUSE if a process has it.
    pub fn new(name: &[u8]) -> Result<Self, Errno> {
        bound(name).map(|socket| Self { _socket: socket })
    }
}

/// Returns whether a process has a name that begins with `beginning` and not with `own`. Anybody can have one.
pub fn is_taken_by_others(beginning: &[u8], own: &[u8]) -> bool {
    // An abstract name has an `@` in the place of its first byte, which is 0.
    let name = |line: &[u8]| line.rsplit(|&byte| byte == b' ').next()?.strip_prefix(b"@").map(<[u8]>::to_vec);
    let sockets = std::fs::read("/proc/net/unix").unwrap_or_default();
    let mut names = sockets.split(|&byte| byte == b'\n').filter_map(name);
    names.any(|name| name.starts_with(beginning) && !name.starts_with(own))
}

fn bound(name: &[u8]) -> Result<OwnedFd, Errno> {
    let socket = socket(SocketFlags::empty())?;
    rustix::net::bind(&socket, &SocketAddrUnix::new_abstract_name(name)?)?;
    Ok(socket)
}

impl Outlet {
    /// Takes a name. Fails with EADDRINUSE if a process has it.
    pub fn open(name: &[u8]) -> Result<Self, Errno> {
        let socket = bound(name)?;
        rustix::net::listen(&socket, BACKLOG)?;
        Ok(Self { name: name.into(), socket })
    }

    /// Answers each [process of ours](is_one_of_ours) with what `answer` returns for its number, until [`Self::close`],
    /// until none has come for the time of [`Self::close_after`], or until there are too many descriptors.
    pub fn serve(&self, message: &[u8], answer: impl Fn(i32) -> Vec<OwnedFd>) {
        while let Ok(asking) = retry_on_intr(|| rustix::net::accept_with(&self.socket, SocketFlags::CLOEXEC))
        {
            if let Some(peer) = peer_of(&asking).ok().filter(|&peer| is_one_of_ours(peer)) {
                // One that has gone meanwhile gets nothing.
                let _ = send(&asking, message, &answer(peer.pid));
            }
        }
        self.close();
    }

    /// Has [`Self::serve`] end once no process has asked for so long.
    pub fn close_after(&self, patience: Duration) {
        let is_set = sockopt::set_socket_timeout(&self.socket, Timeout::Recv, Some(patience));
        // One that waits already has to begin anew: this process asks, and goes without an answer.
        if is_set.and_then(|()| connected(&self.name)).is_err() {
            self.close();
        }
    }

    /// Ends [`Self::serve`], and has others refused from now on. The name itself is free once this socket is dropped, and a
    /// child of a fork that has inherited it ends or calls exec: until then nobody else can take it.
    pub fn close(&self) {
        let _ = rustix::net::shutdown(&self.socket, Shutdown::Both);
    }
}

/// Asks the process that has a name for its message and files. Fails with ECONNREFUSED if none has it, with ECONNRESET if it
/// gave it back meanwhile, with EPERM if it is another user's, with EACCES if it is none of ours for another reason, and with
/// EAGAIN if it does not answer.
pub fn ask(name: &[u8], message: &mut [u8]) -> Result<Vec<OwnedFd>, Errno> {
    answer_of(&connected(name)?, message, PATIENCE)
}

/// Waits for the answer to a connection.
fn answer_of(socket: &OwnedFd, message: &mut [u8], patience: Duration) -> Result<Vec<OwnedFd>, Errno> {
    // Nor is one that was killed ours: a child of a fork keeps its name, and nobody answers.
    let peer = peer_of(socket)?;
    if peer.uid != this_user() {
        return Err(Errno::PERM);
    }
    if !is_one_of_ours(peer) {
        return Err(Errno::ACCESS);
    }
    if fork::with_lock(&SILENT, |silent| {
        silent.is_some_and(|(process, since)| process == peer.pid && since.elapsed() < SILENCE)
    }) {
        return Err(Errno::AGAIN);
    }
    rustix::io::ioctl_fionbio(socket, false)?;
    sockopt::set_socket_timeout(socket, Timeout::Recv, Some(patience))?;
    let answer = receive(socket, message);
    if answer.as_ref().is_err_and(|&errno| errno == Errno::AGAIN)
        && peer.pid.cast_unsigned() != std::process::id()
    {
        fork::with_lock(&SILENT, |silent| *silent = Some((peer.pid, Instant::now())));
    }
    answer
}

/// Connects, and does not wait for room in the queue: another user may have the name, and fill its queue.
fn connected(name: &[u8]) -> Result<OwnedFd, Errno> {
    let socket = socket(SocketFlags::NONBLOCK)?;
    retry_on_intr(|| rustix::net::connect(&socket, &SocketAddrUnix::new_abstract_name(name)?))?;
    Ok(socket)
}

fn socket(flags: SocketFlags) -> Result<OwnedFd, Errno> {
    rustix::net::socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC | flags, None)
}

/// Returns the number of the user in whose name this process acts.
pub fn this_user() -> u32 {
    rustix::process::geteuid().as_raw()
}

/// Returns the process at the other end: the one that asks, or took the name. Its number is 0 if this process cannot see
/// it, which rustix does not expect.
fn peer_of(socket: &OwnedFd) -> Result<libc::ucred, Errno> {
    let mut peer = libc::ucred { pid: 0, uid: u32::MAX, gid: u32::MAX };
    let mut len = size_of::<libc::ucred>() as libc::socklen_t;
    let (level, option, out) = (libc::SOL_SOCKET, libc::SO_PEERCRED, (&raw mut peer).cast());
    // SAFETY: `out` points to `len` bytes of `peer`, which any bytes are good for, and both are there to be written.
    let failed = unsafe { libc::getsockopt(socket.as_raw_fd(), level, option, out, &raw mut len) };
    if failed == 0 {
        Ok(peer)
    } else {
        Err(Errno::from_io_error(&Error::last_os_error()).unwrap_or(Errno::IO))
    }
}

/// Returns whether a process acts for this user, and has the same mounts and the same root. A file of one that has others is
/// not to be had there, and not to be trusted here.
fn is_one_of_ours(peer: libc::ucred) -> bool {
    peer.uid == this_user()
        && peer.pid > 0
        && numbers_are_those_of_proc()
        && mounts_of(&peer.pid.to_string()).is_ok_and(|theirs| mounts_of("self") == Ok(theirs))
}

/// Returns the mount namespace and the root of a process, as pairs of a device and an inode. `self` is the calling one.
pub fn mounts_of(process: &str) -> Result<[(u64, u64); 2], Errno> {
    let place = |what: &str| {
        let found = open::identity_at(Path::new("/proc").join(process).join(what).as_ref())?;
        Ok((found.device, found.inode))
    };
    Ok([place("ns/mnt")?, place("root")?])
}

/// Returns whether /proc has the processes of this namespace: in that of another one a number is that of another process.
fn numbers_are_those_of_proc() -> bool {
    std::fs::read_link("/proc/self")
        .is_ok_and(|own| own.as_os_str() == std::process::id().to_string().as_str())
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

/// Returns the files that came with a message of exactly this length.
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
    use std::sync::atomic::{AtomicUsize, Ordering};
    use std::sync::{Arc, mpsc};

    use super::*;

    fn name(of: &str) -> Vec<u8> {
        format!("pagestream-test/{}/{of}", std::process::id()).into_bytes()
    }

    #[test]
    fn files_and_a_message_reach_each_that_asks_until_the_name_is_given_back() {
        let name = name("files");
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("file");
        std::fs::write(&path, b"bytes").expect("written");
        let outlet = Arc::new(Outlet::open(&name).expect("free"));
        assert_eq!(Outlet::open(&name).err(), Some(Errno::ADDRINUSE));
        let serving = outlet.clone();
        let open = move |_| vec![OwnedFd::from(std::fs::File::open(&path).expect("opened"))];
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
    fn a_name_is_given_back_once_nobody_asks_any_more() {
        let name = name("patient");
        let outlet = Arc::new(Outlet::open(&name).expect("free"));
        let serving = outlet.clone();
        let server = std::thread::spawn(move || serving.serve(b"four", |_| Vec::new()));
        assert!(ask(&name, &mut [0; 4]).is_ok());
        // The server waits for the next one by now, or will.
        outlet.close_after(Duration::from_secs(3600));
        for _ in 0..3 {
            assert!(ask(&name, &mut [0; 4]).is_ok());
        }
        outlet.close_after(Duration::from_millis(1));
        server.join().expect("no panic");
        assert_eq!(ask(&name, &mut [0; 4]).err(), Some(Errno::CONNREFUSED));
    }

    #[test]
    fn each_that_asks_has_the_server_wait_anew() {
        const PATIENCE: Duration = Duration::from_millis(1);
        const MORE: usize = 5;
        let name = name("anew");
        let outlet = Outlet::open(&name).expect("free");
        let first = connected(&name).expect("there is room");
        let (asking, asked) = (Mutex::new(vec![first]), AtomicUsize::new(0));
        outlet.serve(b"four", |_| {
            let number = asked.fetch_add(1, Ordering::Relaxed);
            if number == 0 {
                outlet.close_after(PATIENCE); // which asks once itself
            } else if number <= MORE {
                // The next one asks when the time since the first is over.
                std::thread::sleep(2 * PATIENCE);
                asking.lock().expect("no panic").push(connected(&name).expect("there is room"));
            }
            Vec::new()
        });
        assert_eq!(asked.into_inner(), 2 + MORE);
        for socket in asking.into_inner().expect("no panic") {
            assert!(answer_of(&socket, &mut [0; 4], super::PATIENCE).is_ok());
        }
    }

    #[test]
    fn one_that_has_the_name_and_answers_later_is_waited_for() {
        let name = name("later");
        let outlet = Arc::new(Outlet::open(&name).expect("free"));
        let socket = connected(&name).expect("there is room");
        let serving = outlet.clone();
        let server = std::thread::spawn(move || serving.serve(b"four", |_| Vec::new()));
        let mut message = [0; 4];
        assert!(answer_of(&socket, &mut message, PATIENCE).is_ok());
        assert_eq!(&message, b"four");
        outlet.close();
        server.join().expect("no panic");
    }

    #[test]
    fn signs_of_others_are_seen() {
        let [all, own, other] = ["signs/", "signs/own-", "signs/other-"].map(name);
        let sign = |name: &[u8]| Sign::new(&[name, b"1"].concat()).expect("free");
        assert!(!is_taken_by_others(&all, &own));
        let _own = sign(&own);
        assert!(!is_taken_by_others(&all, &own));
        let another = sign(&other);
        // The list of sockets can lack one while others come and go.
        let are_seen = || is_taken_by_others(&all, &own);
        assert!((0..1000).any(|_| are_seen()));
        drop(another);
        assert!(!are_seen());
    }

    #[test]
    fn a_name_with_too_many_connections_is_not_waited_for() {
        let name = name("busy");
        let _outlet = Outlet::open(&name).expect("free");
        let waiting: Vec<_> =
            std::iter::from_fn(|| connected(&name).ok()).take(2 * BACKLOG as usize).collect();
        assert!(waiting.len() < 2 * BACKLOG as usize);
        // It would wait for ever: the time for an answer begins later.
        let (done, answer) = mpsc::channel();
        std::thread::spawn(move || done.send(ask(&name, &mut [0; 4]).err()));
        assert_eq!(answer.recv_timeout(Duration::from_secs(60)), Ok(Some(Errno::AGAIN)));
    }

    #[test]
    fn a_process_that_does_not_answer_is_not_waited_for_for_ever() {
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

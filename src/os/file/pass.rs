//! Passing open files to other processes of the same user, by name, without a file that names them.
//!
//! The name is an abstract one (unix(7)): it exists in the network namespace alone, and is gone with the last process that
//! has the socket. It protects nothing: whoever comes first has it. So both ends look at the user of the other.

use std::io::{IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, OwnedFd};
use std::time::Duration;

use rustix::io::{Errno, retry_on_intr};
use rustix::net::sockopt::{self, Timeout};
use rustix::net::{
    AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags, Shutdown, SocketAddrUnix, SocketFlags, SocketType, UCred,
};

/// Upper bound of the files of one message.
const MAX_FILES: usize = 2;
/// Connections that wait to be answered.
const BACKLOG: i32 = 64;
/// How long the process that has the name is waited for. It may be opening the file still, or be stopped.
const PATIENCE: Duration = Duration::from_millis(500);

/// A name at which processes of this user ask for files.
#[derive(Debug)]
pub struct Outlet {
    socket: OwnedFd,
}

impl Outlet {
    /// Takes a name. Fails with EADDRINUSE if a process has it.
    pub fn open(name: &[u8]) -> Result<Self, Errno> {
        let socket = socket()?;
        rustix::net::bind(&socket, &SocketAddrUnix::new_abstract_name(name)?)?;
        rustix::net::listen(&socket, BACKLOG)?;
        Ok(Self { socket })
    }

    /// Answers each process of this user with what `answer` returns, until [`Self::close`] or until there are too many
    /// descriptors.
    pub fn serve(&self, message: &[u8], answer: impl Fn() -> Vec<OwnedFd>) {
        while let Ok(asking) = retry_on_intr(|| rustix::net::accept_with(&self.socket, SocketFlags::CLOEXEC))
        {
            if sockopt::socket_peercred(&asking).is_ok_and(is_this_user) {
                // One that has gone meanwhile gets nothing.
                let _ = send(&asking, message, &answer());
            }
        }
        self.close();
    }

    /// Gives the name back, in children of a fork as well, and ends [`Self::serve`].
    pub fn close(&self) {
        let _ = rustix::net::shutdown(&self.socket, Shutdown::Both);
    }
}

/// Asks the process that has a name for its message and files. Fails with ECONNREFUSED if none has it, with ECONNRESET if it
/// gave it back meanwhile, with EACCES if it is one of another user, and with EAGAIN if it does not answer.
pub fn ask(name: &[u8], message: &mut [u8]) -> Result<Vec<OwnedFd>, Errno> {
    let socket = socket()?;
    sockopt::set_socket_timeout(&socket, Timeout::Send, Some(PATIENCE))?;
    sockopt::set_socket_timeout(&socket, Timeout::Recv, Some(PATIENCE))?;
    retry_on_intr(|| rustix::net::connect(&socket, &SocketAddrUnix::new_abstract_name(name)?))?;
    let owner = sockopt::socket_peercred(&socket)?;
    if !is_this_user(owner) {
        return Err(Errno::ACCESS);
    }
    // A child of a fork keeps the name of a process that was killed, and nobody answers.
    if rustix::process::test_kill_process(owner.pid) == Err(Errno::SRCH) {
        return Err(Errno::AGAIN);
    }
    receive(&socket, message)
}

fn socket() -> Result<OwnedFd, Errno> {
    rustix::net::socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None)
}

/// Returns the number of the user in whose name this process acts.
pub fn this_user() -> u32 {
    rustix::process::geteuid().as_raw()
}

fn is_this_user(other: UCred) -> bool {
    other.uid.as_raw() == this_user()
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
    use std::sync::Arc;

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
    fn a_process_that_does_not_answer_is_not_waited_for_for_ever() {
        let name = name("silent");
        let outlet = Outlet::open(&name).expect("free");
        assert_eq!(ask(&name, &mut [0; 4]).err(), Some(Errno::AGAIN));
        let asking = std::thread::spawn(move || ask(&name, &mut [0; 4]).err());
        // Its connection may be waiting, or may come too late.
        drop(outlet);
        let answer = asking.join().expect("no panic");
        assert!(matches!(answer, Some(Errno::CONNRESET | Errno::CONNREFUSED)), "{answer:?}");
    }
}

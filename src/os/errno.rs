//! Names of error numbers: no message shows a bare number.

use std::path::PathBuf;

use rustix::io::Errno;

use crate::error::Error;

pub use rustix::io::Errno as Code;

/// Returns the [`Error::system`] of an error number.
pub fn system(
    operation: &'static str,
    path: impl Into<PathBuf>,
    errno: Errno,
    advice: impl Into<String>,
) -> Error {
    Error::system(operation, path, errno.raw_os_error(), advice)
}

/// Returns the name and text of an error number, such as `"ENODEV (No such device)"`.
pub fn describe(errno: Errno) -> String {
    let number = errno.raw_os_error();
    let text = crate::error::errno_text(number);
    match name(errno) {
        Some(name) => format!("{name} ({text})"),
        None => format!("errno {number} ({text})"),
    }
}

/// Returns advice about failed storage, or an empty string if the error number does not point to storage.
pub fn storage_advice(errno: Errno) -> &'static str {
    match errno {
        Errno::IO | Errno::TIMEDOUT => {
            "the disk, or the server or daemon behind this mount, failed; the kernel log says more (dmesg)"
        }
        Errno::NOTCONN | Errno::CONNABORTED => {
            "the daemon behind this mount is gone; mount it again, and open the file again"
        }
        Errno::STALE => "the server no longer knows the file; list the directory and open it again",
        _ => "",
    }
}

fn name(errno: Errno) -> Option<&'static str> {
    Some(match errno {
        Errno::ACCESS => "EACCES",
        Errno::AGAIN => "EAGAIN",
        Errno::BADF => "EBADF",
        Errno::BUSY => "EBUSY",
        Errno::CONNABORTED => "ECONNABORTED",
        Errno::FAULT => "EFAULT",
        Errno::INTR => "EINTR",
        Errno::INVAL => "EINVAL",
        Errno::IO => "EIO",
        Errno::ISDIR => "EISDIR",
        Errno::LOOP => "ELOOP",
        Errno::MFILE => "EMFILE",
        Errno::NAMETOOLONG => "ENAMETOOLONG",
        Errno::NFILE => "ENFILE",
        Errno::NODEV => "ENODEV",
        Errno::NOENT => "ENOENT",
        Errno::NOMEM => "ENOMEM",
        Errno::NOSPC => "ENOSPC",
        Errno::NOSYS => "ENOSYS",
        Errno::NOTCONN => "ENOTCONN",
        Errno::NOTDIR => "ENOTDIR",
        Errno::NXIO => "ENXIO",
        Errno::OPNOTSUPP => "EOPNOTSUPP",
        Errno::OVERFLOW => "EOVERFLOW",
        Errno::PERM => "EPERM",
        Errno::SPIPE => "ESPIPE",
        Errno::STALE => "ESTALE",
        Errno::TIMEDOUT => "ETIMEDOUT",
        Errno::TXTBSY => "ETXTBSY",
        Errno::XDEV => "EXDEV",
        _ => return None,
    })
}

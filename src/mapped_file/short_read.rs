//! The errors of short reads.

use crate::error::{Error, ReadCause};
use crate::os::errno::{Code, storage_advice};
use crate::os::file::pread::Short;

use super::opened::Opened;

impl Opened {
    /// Returns the error of a read that stopped at `offset`, `length` bytes before its end. If the file has changed, or
    /// the caller's buffer is at fault, it returns that error instead.
    pub(super) fn short_read(&self, offset: u64, length: u64, short: Short) -> Error {
        self.cause_of(short).map_or_else(
            |error| error,
            |cause| Error::MappedRead { path: self.path().into(), offset, length, cause },
        )
    }

    fn cause_of(&self, short: Short) -> Result<ReadCause, Error> {
        match short {
            Short::Errno(Code::FAULT) => {
                let detail =
                    "the buffer to read into cannot be written; is it a mapping of a file that was cut?";
                Err(Error::Buffer { detail: detail.into() })
            }
            Short::Errno(errno) => {
                if errno == Code::STALE {
                    // A server that no longer has the file reports this also for its attributes. Then the file has
                    // changed.
                    self.identity_of_server()?;
                }
                Ok(ReadCause::Io { errno: errno.raw_os_error(), advice: storage_advice(errno) })
            }
            Short::EndOfFile => {
                let (size_at_open, size_now) = (self.size(), self.identity_of_server()?.size);
                Ok(if size_now < size_at_open {
                    ReadCause::Truncated { size_at_open, size_now }
                } else {
                    ReadCause::EndedEarly { size: size_now }
                })
            }
        }
    }
}

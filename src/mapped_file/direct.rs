//! Reads that bypass the page cache (`O_DIRECT`), if the file system supports them.
//!
//! ```text
//!   not tried ──> possible ──(EINVAL in a read)──> refused
//!        └──(EINVAL when the file is opened)─────────┘
//! ```

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};

use crate::os::errno::{Code, describe};
use crate::os::file::direct::{ALIGN_BYTES, open_direct};
use crate::os::file::pread::{self, Short};
use crate::os::memory::Uninit;

/// A second descriptor of a file, for direct reads.
#[derive(Debug)]
pub struct DirectFile {
    file: Result<OwnedFd, Code>,
    /// Whether a read failed with EINVAL.
    is_refused: AtomicBool,
}

impl DirectFile {
    /// Opens the file behind a descriptor once more. On FUSE this drops its cached pages.
    pub fn open(file: BorrowedFd<'_>) -> Self {
        Self { file: open_direct(file), is_refused: AtomicBool::new(false) }
    }

    /// Returns a text about the call that refused direct reads, or `None`.
    pub fn refusal(&self, path: &Path) -> Option<String> {
        let path = path.display();
        match self.file {
            Err(errno) => Some(format!("O_DIRECT: {} when {path} is opened", describe(errno))),
            Ok(_) if self.is_refused.load(Ordering::Relaxed) => {
                Some(format!("O_DIRECT: {} when {path} is read", describe(Code::INVAL)))
            }
            Ok(_) => None,
        }
    }

    /// Reads from `offset` on, and returns the number of bytes read. It is less than the length of `out` at the end of
    /// the file and after a failed read. It is 0 if direct reads are refused, or if the offset, the length or the
    /// address is no multiple of [`ALIGN_BYTES`].
    pub fn read(&self, offset: u64, mut out: Uninit<'_>) -> usize {
        let is_aligned = |number: usize| number.is_multiple_of(ALIGN_BYTES);
        let is_possible = offset.is_multiple_of(ALIGN_BYTES as u64)
            && is_aligned(out.len())
            && is_aligned(out.as_mut_ptr().addr())
            && !self.is_refused.load(Ordering::Relaxed);
        let Some(file) = self.file.as_ref().ok().filter(|_| is_possible) else { return 0 };
        let len = out.len();
        match pread::read_at(file.as_fd(), offset, out) {
            Ok(_) => len,
            Err((good, short)) => {
                // After some bytes, the next read begins at another offset, which may be unaligned.
                if good == 0 && short == Short::Errno(Code::INVAL) {
                    self.is_refused.store(true, Ordering::Relaxed);
                }
                good
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::io::Write;

    use super::*;
    use crate::os::memory::anonymous::{Anonymous, HugePages};
    use crate::os::memory::parts::split;

    #[test]
    fn aligned_reads_reach_the_end_and_unaligned_ones_read_nothing() {
        let bytes: Vec<u8> = (0..10_000_u32).map(|number| (number % 251) as u8).collect();
        // The build folder is on a disk. The folder for temporary files may be a tmpfs, which has no direct reads.
        let build = std::env::current_exe().expect("this program");
        let mut file = tempfile::NamedTempFile::new_in(build.parent().expect("a folder")).expect("a file");
        file.write_all(&bytes).expect("written");
        let direct = DirectFile::open(file.as_file().as_fd());
        let memory = Anonymous::private(4 * ALIGN_BYTES, HugePages::Never).expect("memory");
        let (mut whole, mut parts) =
            split(memory, &[(0, 2 * ALIGN_BYTES), (2 * ALIGN_BYTES, 100)]).expect("valid");
        let mut other = parts.pop().expect("two");
        let mut part = parts.pop().expect("two");
        assert_eq!(direct.read(4096, part.memory()), 10_000 - 4096, "{:?}", direct.refusal(file.path()));
        assert_eq!(direct.read(4095, part.memory()), 0, "the place");
        assert_eq!(direct.read(4096, part.memory().range(1..4097)), 0, "the address");
        assert_eq!(direct.read(4096, other.memory()), 0, "the length");
        assert_eq!(direct.refusal(file.path()), None);
        drop((part, other));
        assert_eq!(whole.bytes().map(|found| &found[..10_000 - 4096]), Some(&bytes[4096..]));
    }
}

//! Copies from an open file. A failed copy is an error and never kills the process.

use std::time::Duration;

use crate::error::Result;
use crate::os::errno::Code;
use crate::os::fault;
use crate::os::file::pread::{self, Short};
use crate::os::memory::{Uninit, zeroed};
use crate::os::process::fork;

use super::direct::DirectFile;
use super::hints::WithoutReadAhead;
use super::mode::Mode;
use super::opened::Opened;

/// Pause before the single retry after an I/O error: time for a server to come back.
const IO_RETRY_PAUSE: Duration = Duration::from_millis(100);

/// Returns whether copies out of mappings survive bus errors in this thread.
pub fn can_copy_from_mappings() -> bool {
    fault::install_and_check()
}

/// Many reads of one file. [`Self::finish`] verifies them.
#[derive(Debug)]
pub struct FileReader<'a> {
    pub opened: &'a Opened,
    /// The result of [`can_copy_from_mappings`] in the thread that created the reader. False for exact reads: they
    /// avoid the mapping, because a fault would bring in the disk's whole read-ahead.
    guarded: bool,
    _without_read_ahead: Option<WithoutReadAhead<'a>>,
}

impl FileReader<'_> {
    /// Fills `out` with the file's bytes from `offset`.
    pub fn read_into(&self, offset: u64, out: Uninit<'_>) -> Result<()> {
        self.opened.check_range(offset, out.len() as u64)?;
        self.opened.copy_into(offset, out, self.guarded)
    }

    /// Returns a copy of `length` bytes. The caller must limit `length`.
    pub fn read(&self, offset: u64, length: u64) -> Result<Vec<u8>> {
        self.opened.check_range(offset, length)?;
        let mut bytes = zeroed(length as usize, "a copy of a file's bytes")?;
        self.read_into(offset, Uninit::of(&mut bytes))?;
        Ok(bytes)
    }

    /// Returns `N` bytes as an array.
    pub fn bytes<const N: usize>(&self, offset: u64) -> Result<[u8; N]> {
        let mut bytes = [0; N];
        self.read_into(offset, Uninit::of(&mut bytes))?;
        Ok(bytes)
    }

    /// Returns a copy of `length` bytes, and verifies all reads.
    pub fn read_last(self, offset: u64, length: u64) -> Result<Vec<u8>> {
        let bytes = self.read(offset, length)?;
        self.finish()?;
        Ok(bytes)
    }

    /// Returns an error unless all bytes read were the file's. Call this last.
    pub fn finish(self) -> Result<()> {
        self.opened.verify()
    }
}

impl Opened {
    /// Begins many reads by the calling thread, through the mapping if there is one.
    pub fn reader(&self) -> FileReader<'_> {
        FileReader { opened: self, guarded: can_copy_from_mappings(), _without_read_ahead: None }
    }

    /// Begins reads of a few scattered bytes, by any threads. They bring in nothing else.
    pub fn exact_reader(&self) -> FileReader<'_> {
        self.widen_requests();
        let without_read_ahead = Some(self.without_read_ahead());
        FileReader { opened: self, guarded: false, _without_read_ahead: without_read_ahead }
    }

    /// Fills `out` with the file's bytes from `offset`.
    pub fn read_into(&self, offset: u64, out: Uninit<'_>) -> Result<()> {
        let length = out.len() as u64;
        self.check_range(offset, length)?;
        if length == 0 {
            return Ok(());
        }
        self.copy_into(offset, out, can_copy_from_mappings())?;
        self.verify_range(offset, length)
    }

    /// Returns a copy of `length` bytes. The caller must limit `length`.
    pub fn read(&self, offset: u64, length: u64) -> Result<Vec<u8>> {
        self.check_range(offset, length)?;
        let mut bytes = zeroed(length as usize, "a copy of a file's bytes")?;
        self.read_into(offset, Uninit::of(&mut bytes))?;
        Ok(bytes)
    }

    /// Fills `out` and checks nothing. `guarded` is the result of [`can_copy_from_mappings`] in this thread. The range
    /// must lie inside the file, and [`Self::verify`] must follow the last of many copies.
    pub fn copy_into(&self, offset: u64, mut out: Uninit<'_>, guarded: bool) -> Result<()> {
        let copied = match &self.region {
            Some(region) if guarded => region.copy_out(offset as usize, out.reborrow()),
            _ => Err(0),
        };
        let has_zero_tail = match copied {
            Ok(has_zero_tail) => has_zero_tail,
            Err(good) => self.pread_into(offset + good as u64, out.split_at(good).1)?,
        };
        if has_zero_tail {
            self.note_zero_tail();
        }
        Ok(())
    }

    /// Prefetches mapped bytes for the next copy.
    pub fn prefetch(&self, offset: u64, len: u64) {
        if let Some(region) = &self.region {
            region.prefetch(offset as usize, len as usize);
        }
    }

    /// Returns whether positioned reads use the pages that the kernel fetched ahead. If a shared mapping is refused,
    /// they bypass the page cache (FUSE with `direct_io`), and the bytes would be read twice.
    pub fn reads_from_cache(&self) -> bool {
        self.facts.mode == Mode::Shared
    }

    /// Reads from `offset` on, bypassing the page cache, and checks nothing. Returns the number of bytes read;
    /// [`DirectFile::read`] lists the reasons for a short read.
    pub fn read_directly(&self, offset: u64, out: Uninit<'_>) -> usize {
        self.direct_file().read(offset, out)
    }

    /// Returns why direct reads of the file are impossible, or `None` if no reason is known.
    pub fn direct_refusal(&self) -> Option<String> {
        self.direct_file().refusal(self.path())
    }

    /// Opens the file for [`Self::read_directly`], unless it is already open.
    pub fn open_directly(&self) {
        self.direct_file();
    }

    fn direct_file(&self) -> &DirectFile {
        fork::get_or_make(&self.direct, || DirectFile::open(self.file()))
    }

    /// Returns whether positioned reads may use the pages that the kernel fetched ahead. A requested private mapping
    /// leaves this open, because it says nothing about the page cache.
    pub fn may_read_from_cache(&self) -> bool {
        self.reads_from_cache() || (self.facts.mode == Mode::Private && self.facts.reason.is_none())
    }

    /// Fills `out`. Returns whether one of its pages ends in zeros.
    pub(super) fn pread_into(&self, offset: u64, mut out: Uninit<'_>) -> Result<bool> {
        let len = out.len();
        let (mut good, mut short) = match self.read_at(offset, out.reborrow()) {
            Ok(has_zero_tail) => return Ok(has_zero_tail),
            Err(failure) => failure,
        };
        if matches!(short, Short::Errno(Code::IO | Code::TIMEDOUT)) {
            std::thread::sleep(IO_RETRY_PAUSE);
            match self.read_at(offset + good as u64, out.range(good..len)) {
                // The bytes of the first try may also end in zeros.
                Ok(_) => return Ok(true),
                Err((more, again)) => (good, short) = (good + more, again),
            }
        }
        Err(self.short_read(offset + good as u64, (len - good) as u64, short))
    }

    /// Calls [`pread::read_at`] for this file.
    fn read_at(&self, offset: u64, out: Uninit<'_>) -> Result<bool, (usize, Short)> {
        #[cfg(test)]
        if let Some(gate) = self.gate.get() {
            gate.pass(offset, out.len()).map_err(|errno| (0, Short::Errno(errno)))?;
        }
        pread::read_at(self.file(), offset, out)
    }
}

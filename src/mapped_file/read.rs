//! Copies out of an open file that end in an error and never in a dead process.

use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use crate::error::{Error, ReadCause, Result};
use crate::os::errno::Code;
use crate::os::fault;
use crate::os::file::pread::{self, Short};
use crate::os::memory::Uninit;
use crate::os::memory::advise::{Advice, advise_file};
use crate::os::process::fork;

use super::{Mode, Opened};

/// How long after an I/O error the one further try is made: time for a server to come back.
const IO_RETRY_PAUSE: Duration = Duration::from_millis(100);

/// Many small reads by one thread. What [`Opened::read_into`] checks for each is checked once for all.
#[derive(Debug)]
pub struct Reader<'a> {
    opened: &'a Opened,
    /// Whether the mapping is used.
    guarded: bool,
    /// Where more than what is asked for may not be read.
    random: Option<RandomReads<'a>>,
}

impl Reader<'_> {
    pub fn bytes<const N: usize>(&self, offset: u64) -> Result<[u8; N]> {
        self.opened.check_range(offset, N as u64)?;
        let mut bytes = [0; N];
        self.opened.copy_into(offset, Uninit::of(&mut bytes), self.guarded)?;
        Ok(bytes)
    }

    /// A copy of `length` bytes. The caller has bounded `length`.
    pub fn read(&self, offset: u64, length: u64) -> Result<Vec<u8>> {
        self.opened.check_range(offset, length)?;
        let mut bytes = vec![0; length as usize];
        self.opened.copy_into(offset, Uninit::of(&mut bytes), self.guarded)?;
        Ok(bytes)
    }

    pub fn opened(&self) -> &Opened {
        self.opened
    }

    /// To be called last: were the bytes the file's?
    pub fn finish(self) -> Result<()> {
        drop(self.random);
        self.opened.verify()
    }
}

impl Opened {
    pub fn reader(&self) -> Reader<'_> {
        Reader { opened: self, guarded: fault::install_and_check(), random: None }
    }

    /// For a few bytes of a file of which nothing else may be wanted: past the mapping, where a fault would
    /// bring in all that the disk reads ahead (megabytes of each of a thousand shards).
    pub fn sparse_reader(&self) -> Reader<'_> {
        Reader { opened: self, guarded: false, random: Some(self.random_reads()) }
    }

    /// Fills `out` with the file's bytes from `offset`.
    ///
    /// From the mapping, by the copy that survives bus errors; where that stops, or cannot be used, by
    /// pread, which either gets the bytes after all or tells the true cause. Last, the file must not
    /// have been cut or rewritten meanwhile.
    pub fn read_into(&self, offset: u64, out: Uninit<'_>) -> Result<()> {
        let length = out.len() as u64;
        self.check_range(offset, length)?;
        if length == 0 {
            return Ok(());
        }
        self.copy_into(offset, out, fault::install_and_check())?;
        self.verify_copied(offset, length)
    }

    /// A copy of `length` bytes. The caller has bounded `length`.
    pub fn read(&self, offset: u64, length: u64) -> Result<Vec<u8>> {
        self.check_range(offset, length)?;
        let mut bytes = vec![0; length as usize];
        self.read_into(offset, Uninit::of(&mut bytes))?;
        Ok(bytes)
    }

    /// [`Self::read`] by [`Self::sparse_reader`].
    pub fn peek(&self, offset: u64, length: u64) -> Result<Vec<u8>> {
        let reader = self.sparse_reader();
        let bytes = reader.read(offset, length)?;
        reader.finish()?;
        Ok(bytes)
    }

    /// [`Self::read_into`] without its first and last step, for callers that do those once for many
    /// ranges: `guarded` is the answer of [`fault::install_and_check`] in this thread.
    pub fn copy_into(&self, offset: u64, mut out: Uninit<'_>, guarded: bool) -> Result<()> {
        let copied = match &self.region {
            Some(region) if guarded => match region.copy_out(offset as usize, out.reborrow()) {
                Ok(()) => return Ok(()),
                Err(good) => good,
            },
            _ => 0,
        };
        self.pread_into(offset + copied as u64, out.split_at(copied).1)
    }

    pub(super) fn pread_into(&self, offset: u64, mut out: Uninit<'_>) -> Result<()> {
        let len = out.len();
        let (mut good, mut short) = match pread::read_at(self.file(), offset, out.reborrow()) {
            Ok(()) => return Ok(()),
            Err(failure) => failure,
        };
        if short == Short::Errno(Code::IO) {
            std::thread::sleep(IO_RETRY_PAUSE);
            match pread::read_at(self.file(), offset + good as u64, out.range(good..len)) {
                Ok(()) => return Ok(()),
                Err((more, again)) => (good, short) = (good + more, again),
            }
        }
        let cause = match short {
            Short::Errno(Code::FAULT) => {
                let detail =
                    "the buffer to read into cannot be written; is it a mapping of a file that was cut?";
                return Err(Error::Buffer { detail: detail.into() });
            }
            Short::Errno(errno) => ReadCause::Io { errno: errno.raw_os_error() },
            Short::EndOfFile => {
                let (size_at_open, size_now) = (self.size(), self.identity_now()?.size);
                if size_now < size_at_open {
                    ReadCause::Truncated { size_at_open, size_now }
                } else {
                    ReadCause::EndedEarly { size: size_now }
                }
            }
        };
        let (offset, length) = (offset + good as u64, (len - good) as u64);
        Err(Error::MappedRead { path: self.path.clone(), offset, length, cause })
    }
}

/// The advice of a descriptor, which all of its readers share. It holds for reads alone, not for a mapping.
#[derive(Debug, Default)]
pub(super) struct DescriptorAdvice(Mutex<State>);

#[derive(Debug, Default)]
struct State {
    /// How many [`RandomReads`] there are.
    random_reads: usize,
    /// What the user asked of a file that is not mapped.
    asked: Option<Advice>,
}

impl DescriptorAdvice {
    /// The lock is never waited for by a fork's child: it is taken in sections only.
    fn state(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Takes note of advice for the whole of a file that is not mapped.
    pub(super) fn ask(&self, advice: Advice) {
        let _section = fork::section();
        self.state().asked = Some(advice);
    }
}

/// While one of these lives, reads of the file are not extended by read-ahead: megabytes for each range of a
/// few bytes, on some disks. Of use to several threads at once.
#[derive(Debug)]
pub struct RandomReads<'a> {
    opened: &'a Opened,
}

impl RandomReads<'_> {
    /// Fills `out` with the file's bytes from `offset`, past the mapping, whose faults would read ahead.
    pub fn read_into(&self, offset: u64, out: Uninit<'_>) -> Result<()> {
        self.opened.check_range(offset, out.len() as u64)?;
        self.opened.pread_into(offset, out)
    }

    /// Likewise for bytes that were found in the page cache a moment ago: out of the mapping, which saves the
    /// system call. `guarded` is the answer of [`Self::is_guarded`] in this thread.
    pub fn copy_cached(&self, offset: u64, out: Uninit<'_>, guarded: bool) -> Result<()> {
        self.opened.check_range(offset, out.len() as u64)?;
        self.opened.copy_into(offset, out, guarded)
    }

    /// Tells the processor that such bytes come next.
    pub fn prefetch_cached(&self, offset: u64, len: u64) {
        if let Some(region) = self.opened.region() {
            region.prefetch(offset as usize, len as usize);
        }
    }

    /// Whether copies out of the mapping survive bus errors in this thread.
    pub fn is_guarded(&self) -> bool {
        fault::install_and_check()
    }

    pub fn opened(&self) -> &Opened {
        self.opened
    }

    /// To be called last: were the bytes the file's?
    pub fn finish(self) -> Result<()> {
        let opened = self.opened;
        drop(self);
        opened.verify()
    }
}

impl Drop for RandomReads<'_> {
    fn drop(&mut self) {
        let _section = fork::section();
        let mut state = self.opened.descriptor_advice.state();
        state.random_reads = state.random_reads.saturating_sub(1);
        if state.random_reads == 0 {
            let advice = state.asked.unwrap_or(Advice::Normal);
            let _ = advise_file(self.opened.file(), 0, self.opened.size(), advice);
        }
    }
}

impl Opened {
    pub fn random_reads(&self) -> RandomReads<'_> {
        let _section = fork::section();
        let mut state = self.descriptor_advice.state();
        state.random_reads += 1;
        // Each time: a process that shares the descriptor since a fork may have set it back.
        let _ = advise_file(self.file(), 0, self.size(), Advice::Random);
        drop(state);
        RandomReads { opened: self }
    }

    /// Whether positioned reads get what [`Self::fetch_ahead`] brought in. Where a shared mapping is
    /// refused they go past the page cache (FUSE with `direct_io`): there it would be read twice.
    pub fn reads_from_cache(&self) -> bool {
        self.facts.mode == Mode::Shared
    }
}

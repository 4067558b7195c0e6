//! Positioned reads that bring in what they read and nothing else.

use std::mem::MaybeUninit;
use std::sync::{Mutex, MutexGuard, PoisonError};

use crate::error::Result;
use crate::os::advise::{Advice, advise_file};
use crate::os::{fault, fork};

use super::{Mode, Opened};

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
    pub fn read_into(&self, offset: u64, out: &mut [MaybeUninit<u8>]) -> Result<()> {
        self.opened.check_range(offset, out.len() as u64)?;
        self.opened.pread_into(offset, out)
    }

    /// Likewise for bytes that were found in the page cache a moment ago: out of the mapping, which saves the
    /// system call. `guarded` is the answer of [`Self::is_guarded`] in this thread.
    pub fn copy_cached(&self, offset: u64, out: &mut [MaybeUninit<u8>], guarded: bool) -> Result<()> {
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
        fault::ready()
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

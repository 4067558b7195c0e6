//! What the kernel was told about a file. It keeps one advice for each descriptor and one for each mapping; this is
//! the one place that knows both.

use std::os::fd::BorrowedFd;
use std::sync::{Mutex, MutexGuard, PoisonError};

use crate::os::memory::advise::{Advice, advise_file};
use crate::os::process::fork;

/// What was asked for the whole file, and who needs the descriptor to be without read-ahead meanwhile. Shared by all
/// that stands on one descriptor.
#[derive(Debug, Default)]
pub(super) struct Hints(Mutex<Asked>);

#[derive(Debug, Default, Clone, Copy)]
struct Asked {
    advice: Option<Advice>,
    locked: bool,
    /// [`WithoutReadAhead`]s that are alive.
    exact_readers: usize,
}

/// The user of a descriptor, which advice for positioned reads reaches. A mapping has advice of its own.
#[derive(Debug, Clone, Copy)]
pub(super) struct Descriptor<'a> {
    pub hints: &'a Hints,
    pub file: BorrowedFd<'a>,
    pub size: u64,
    pub is_mapped: bool,
}

/// While one of these lives, reads of the file are not extended by read-ahead: megabytes for each range of a few
/// bytes, on some disks.
#[derive(Debug)]
pub(super) struct WithoutReadAhead<'a>(Descriptor<'a>);

impl Hints {
    /// Must be called in a section: a child of a fork must not inherit the lock from a thread that it does not have.
    fn asked(&self) -> MutexGuard<'_, Asked> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns the advice for the whole file.
    pub fn advice(&self) -> Option<Advice> {
        let _section = fork::section();
        self.asked().advice
    }

    pub fn is_locked(&self) -> bool {
        let _section = fork::section();
        self.asked().locked
    }

    pub fn set_locked(&self, locked: bool) {
        let _section = fork::section();
        self.asked().locked = locked;
    }
}

impl<'a> Descriptor<'a> {
    /// Notes advice for the whole file, and gives it to the kernel where positioned reads are concerned. Returns
    /// whether the kernel took it.
    pub fn advise(self, advice: Advice) -> bool {
        let _section = fork::section();
        let mut asked = self.hints.asked();
        asked.advice = Some(advice);
        // Readers that need it otherwise are at work; the last of them gives the advice to the kernel.
        self.is_mapped || asked.exact_readers > 0 || self.set(advice)
    }

    pub fn without_read_ahead(self) -> WithoutReadAhead<'a> {
        let _section = fork::section();
        let mut asked = self.hints.asked();
        asked.exact_readers += 1;
        // Each time: a process that shares the descriptor since a fork may have set it back.
        self.set(Advice::Random);
        WithoutReadAhead(self)
    }

    fn set(self, advice: Advice) -> bool {
        advise_file(self.file, 0, self.size, advice)
    }
}

impl Drop for WithoutReadAhead<'_> {
    fn drop(&mut self) {
        let _section = fork::section();
        let mut asked = self.0.hints.asked();
        asked.exact_readers = asked.exact_readers.saturating_sub(1);
        if asked.exact_readers == 0 {
            let advice = asked.advice.filter(|_| !self.0.is_mapped);
            self.0.set(advice.unwrap_or(Advice::Normal));
        }
    }
}

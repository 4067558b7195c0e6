//! The hints that the kernel was given about a file. The kernel keeps one advice for each descriptor and one for
//! each mapping; only this file knows both.

use std::os::fd::BorrowedFd;
use std::sync::{Mutex, MutexGuard, PoisonError};

use crate::os::memory::advise::{Advice, advise_file};
use crate::os::process::fork;

/// Advice for the whole file, whether it is locked in memory, and the number of readers that have read-ahead off.
/// Shared by every mapping of one descriptor.
#[derive(Debug, Default)]
pub(super) struct Hints(Mutex<Asked>);

#[derive(Debug, Default, Clone, Copy)]
struct Asked {
    advice: Option<Advice>,
    locked: bool,
    /// Number of live [`WithoutReadAhead`]s.
    exact_readers: usize,
}

/// A descriptor and its hints. Advice for a descriptor affects positioned reads; a mapping has advice of its own.
#[derive(Debug, Clone, Copy)]
pub(super) struct Descriptor<'a> {
    pub hints: &'a Hints,
    pub file: BorrowedFd<'a>,
    pub size: u64,
    pub is_mapped: bool,
}

/// Keeps read-ahead off until it is dropped. On some disks read-ahead would extend a read of a few bytes to
/// megabytes.
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
    /// Records advice for the whole file, and gives it to the kernel if the file is read by positioned reads.
    /// Returns false if the kernel refused it.
    pub fn advise(self, advice: Advice) -> bool {
        let _section = fork::section();
        let mut asked = self.hints.asked();
        asked.advice = Some(advice);
        // The last of the readers that have read-ahead off gives the advice to the kernel.
        self.is_mapped || asked.exact_readers > 0 || self.set(advice)
    }

    pub fn without_read_ahead(self) -> WithoutReadAhead<'a> {
        let _section = fork::section();
        let mut asked = self.hints.asked();
        asked.exact_readers += 1;
        // Each time, because a process that has shared the descriptor since a fork may have set it back.
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

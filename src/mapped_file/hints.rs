//! The hints that the kernel has about a file. The kernel keeps one advice for each descriptor and one for each
//! mapping; only this module knows both. Advice for a descriptor affects positioned reads and the read-ahead of page
//! faults.

use crate::os::memory::advise::{Advice, advise_file};
use crate::os::process::fork;

use super::opened::Opened;

/// Keeps read-ahead off until it is dropped. On some disks, read-ahead would extend a read of a few bytes to megabytes.
#[derive(Debug)]
pub(super) struct WithoutReadAhead<'a>(&'a Opened);

impl Opened {
    /// Records advice for the whole file, and passes it to the kernel if the file is read by positioned reads. Returns
    /// false if the kernel refused it.
    pub(super) fn advise_descriptor(&self, advice: Advice) -> bool {
        fork::with_lock(&self.hints, |hints| {
            hints.advice = Some(advice);
            // The last reader that turned read-ahead off passes the advice to the kernel.
            self.region.is_some() || hints.exact_readers > 0 || self.set(advice)
        })
    }

    /// Doubles the read-ahead window of the descriptor (`generic_fadvise` in mm/fadvise.c), which limits each request
    /// of a long read, even without read-ahead.
    pub(super) fn widen_requests(&self) {
        fork::with_lock(&self.hints, |hints| {
            if hints.exact_readers == 0 {
                self.set(Advice::Sequential);
            }
        });
    }

    /// Doubles the read-ahead of page faults from now on, as torch does for its own file mappings
    /// (`UntypedStorage.from_file`).
    pub fn widen_read_ahead(&self) {
        if !fork::with_lock(&self.hints, |hints| std::mem::replace(&mut hints.is_widened, true)) {
            self.widen_requests();
        }
    }

    pub(super) fn without_read_ahead(&self) -> WithoutReadAhead<'_> {
        fork::with_lock(&self.hints, |hints| {
            hints.exact_readers += 1;
            // Set it each time: a process that has shared the descriptor since a fork may have changed it.
            self.set(Advice::Random);
        });
        WithoutReadAhead(self)
    }

    fn set(&self, advice: Advice) -> bool {
        advise_file(self.file(), 0, self.size(), advice)
    }
}

impl Drop for WithoutReadAhead<'_> {
    fn drop(&mut self) {
        let Self(opened) = self;
        fork::with_lock(&opened.hints, |hints| {
            hints.exact_readers = hints.exact_readers.saturating_sub(1);
            if hints.exact_readers == 0 {
                let advice = hints.advice.filter(|_| opened.region.is_none());
                let usual = if hints.is_widened { Advice::Sequential } else { Advice::Normal };
                opened.set(advice.unwrap_or(usual));
            }
        });
    }
}

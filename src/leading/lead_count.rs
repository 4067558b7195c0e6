//! How many leads a process has, and how they share its memory and its threads.

use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};

use crate::fetch::crew::Limits;
use crate::os::process::{fork, limits};

use crate::streaming::options::READERS;

/// The lead of a caller that names none: this share of the available memory, divided by the number of leads, and no more
/// than [`LEAD_BYTES`].
const MEMORY_SHARE: u64 = 4;
const LEAD_BYTES: u64 = 1 << 30;

/// Leads at a time that have a thread, descriptors or memory of their own. Other files are used without one.
/// Tests of this crate have theirs side by side, in one process.
const MAX_LEADS: usize = if cfg!(test) { 1000 } else { 8 };

/// The number of leads of this process that are not off.
static LEADS: Mutex<LeadCount> = Mutex::new(LeadCount { process: 0, leads: 0 });

/// The leads of a process, which is told by the number of forks: a child has none of its parent's.
struct LeadCount {
    process: u64,
    leads: usize,
}

/// Whether a lead is one of those that are counted.
#[derive(Debug, Default)]
pub struct Seat(AtomicBool);

impl Seat {
    /// Returns whether there is one.
    pub fn is_free() -> bool {
        count_leads(|leads| leads) < MAX_LEADS
    }

    /// Counts the lead, unless it is. Returns false if there are too many.
    pub fn take(&self) -> bool {
        self.0.swap(true, Ordering::Relaxed) || count_leads(|leads| leads + 1) <= MAX_LEADS
    }

    #[cfg(test)]
    pub fn is_taken(&self) -> bool {
        self.0.load(Ordering::Relaxed)
    }

    /// Counts the lead no longer.
    pub fn give_up(&self) {
        if self.0.swap(false, Ordering::Relaxed) {
            count_leads(|leads| leads.saturating_sub(1));
        }
    }
}

/// Changes the number of leads, and returns it.
fn count_leads(change: impl FnOnce(usize) -> usize) -> usize {
    fork::with_lock(&LEADS, |count| {
        let process = fork::generation();
        let leads = if count.process == process { count.leads } else { 0 };
        *count = LeadCount { process, leads: change(leads) };
        count.leads
    })
}

/// Returns how long a lead may be whose caller names no limit.
pub fn usual_lead_bytes() -> u64 {
    share_of(limits::available_memory_bytes(), count_leads(|leads| leads))
}

/// Returns how many threads read for one of the leads that there are. Together they have as many as one.
pub fn readers_of_lead() -> Limits {
    readers_of_one_in(count_leads(|leads| leads))
}

fn readers_of_one_in(leads: usize) -> Limits {
    let most = (READERS.most / leads.max(1)).max(READERS.first);
    Limits { most, ..READERS }
}

/// Returns how long the last one of so many leads may be.
fn share_of(available_bytes: u64, leads: usize) -> u64 {
    (available_bytes / MEMORY_SHARE / leads.max(1) as u64).min(LEAD_BYTES)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn leads_that_begin_one_after_another_leave_memory_for_others() {
        const GIB: u64 = 1 << 30;
        assert_eq!(share_of(64 * GIB, 1), GIB);
        assert_eq!(share_of(64 * GIB, 16), GIB);
        assert_eq!(share_of(GIB, 1), GIB / 4);
        let all: u64 = (1..=8).map(|leads| share_of(GIB, leads)).sum();
        assert!(all < 3 * GIB / 4, "{all}");
    }

    #[test]
    fn leads_share_the_threads_of_one() {
        assert_eq!([0, 1, 2, 8, 100].map(|leads| readers_of_one_in(leads).most), [64, 64, 32, 8, 8]);
        assert!(readers_of_one_in(MAX_LEADS).first <= readers_of_one_in(MAX_LEADS).most);
    }
}

//! Limits the number of leads in a process, and divides its memory and threads among them.

use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};

use crate::fetch::crew::Limits;
use crate::os::process::{fork, limits};

use crate::streaming::options::READERS;

/// Length of a lead without a limit from the caller: this share of the available memory, divided by the number of
/// leads, and at most [`LEAD_BYTES`].
const MEMORY_SHARE: u64 = 4;
const LEAD_BYTES: u64 = 1 << 30;

/// Maximum number of leads with a thread, descriptors or memory of their own. Further files are used without a lead.
/// Tests of this crate run side by side in one process, so they may have more.
const MAX_LEADS: usize = if cfg!(test) { 1000 } else { 8 };

/// The number of active leads in this process.
static LEADS: Mutex<LeadCount> = Mutex::new(LeadCount { process: 0, leads: 0 });

/// The leads of a process. The number of forks identifies the process, because a child has no lead of its parent.
struct LeadCount {
    process: u64,
    leads: usize,
}

/// Whether a lead is counted.
#[derive(Debug, Default)]
pub struct Seat(AtomicBool);

impl Seat {
    /// Returns whether another lead may be counted.
    pub fn is_free() -> bool {
        count_leads(|leads| leads) < MAX_LEADS
    }

    /// Counts the lead, if it is not counted yet. Returns false if there are too many leads.
    pub fn take(&self) -> bool {
        self.0.swap(true, Ordering::Relaxed) || count_leads(|leads| leads + 1) <= MAX_LEADS
    }

    #[cfg(test)]
    pub fn is_taken(&self) -> bool {
        self.0.load(Ordering::Relaxed)
    }

    /// Stops counting the lead.
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

/// Returns the maximum length of a lead whose caller names no limit.
pub fn usual_lead_bytes() -> u64 {
    share_of(limits::available_memory_bytes(), count_leads(|leads| leads))
}

/// Returns the number of threads that read for each current lead. All leads together have the threads of a single one.
pub fn readers_of_lead() -> Limits {
    readers_of_one_in(count_leads(|leads| leads))
}

fn readers_of_one_in(leads: usize) -> Limits {
    let most = (READERS.most / leads.max(1)).max(READERS.first);
    Limits { most, ..READERS }
}

/// Returns the maximum length of the last of `leads` leads.
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

//! How many leads a process has.

use std::sync::Mutex;

use crate::os::process::fork;

/// The number of leads of this process that are not off.
static LEADS: Mutex<LeadCount> = Mutex::new(LeadCount { process: 0, leads: 0 });

/// The leads of a process, which is told by the number of forks: a child has none of its parent's.
struct LeadCount {
    process: u64,
    leads: usize,
}

/// Changes the number of leads, and returns it.
pub fn count_leads(change: impl FnOnce(usize) -> usize) -> usize {
    fork::with_lock(&LEADS, |count| {
        let process = fork::generation();
        let leads = if count.process == process { count.leads } else { 0 };
        *count = LeadCount { process, leads: change(leads) };
        count.leads
    })
}

//! Whether page faults that read megabytes bring the bytes of whole tensors as fast as anything: where the storage
//! answers at once, as local disks do, and memory has room. Reads ahead by positioned reads would take more of the
//! processor, and come in smaller pages.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, mpsc};
use std::thread::Builder;
use std::time::{Duration, Instant};

use crate::mapped_file::Opened;
use crate::os::memory::Uninit;
use crate::os::process::{fork, limits};

use super::sample::drawn;

/// Local disks with flash answer in this time, networks do not.
const AT_ONCE: Duration = Duration::from_micros(120);
/// Where less memory is available, pages that were read far ahead may be dropped before they are used.
const LEAST_AVAILABLE_BYTES: u64 = 1 << 30;
/// No storage is as fast: the page was cached, and tells nothing.
const CACHED: Duration = Duration::from_micros(10);
/// Pages that are read until enough of them were not cached. The second fastest of those decides.
const MOST_PAGES: u64 = 8;
const COLD_PAGES: usize = 3;
/// How long the caller waits. Slow storage is known by then.
const PATIENCE: Duration = Duration::from_millis(3);
const STACK_BYTES: usize = 128 << 10;

/// What is known of each mount, by its number.
static KNOWN: Mutex<BTreeMap<(u64, u64), bool>> = Mutex::new(BTreeMap::new());

/// Returns whether page faults in a cold file are to read megabytes. `seed` picks pages that are read to time the storage,
/// once for each mount.
pub fn pay(opened: &Arc<Opened>, seed: u64) -> bool {
    opened.region.is_some()
        && opened.may_read_from_cache()
        && limits::available_memory_bytes() >= LEAST_AVAILABLE_BYTES
        && answers_at_once(opened, seed)
}

fn answers_at_once(opened: &Arc<Opened>, seed: u64) -> bool {
    let mount = opened.mount_number();
    let known = fork::with_lock(&KNOWN, |known| known.get(&mount).copied());
    known.unwrap_or_else(|| {
        let (sender, receiver) = mpsc::channel();
        let file = opened.clone();
        let thread = Builder::new().name("pagestream-probe".into()).stack_size(STACK_BYTES);
        let answer = match thread.spawn(move || sender.send(is_quick(&file, seed))) {
            Ok(_) => receiver.recv_timeout(PATIENCE).unwrap_or(Some(false)),
            Err(_) => None,
        };
        if let Some(is_quick) = answer {
            fork::with_lock(&KNOWN, |known| known.insert(mount, is_quick));
        }
        answer.unwrap_or(false)
    })
}

/// Times reads of single pages. `None` if too many are cached, or one fails.
fn is_quick(opened: &Opened, seed: u64) -> Option<bool> {
    let reader = opened.exact_reader();
    let mut cold = Vec::with_capacity(COLD_PAGES);
    for page in 0..MOST_PAGES {
        let begun = Instant::now();
        reader.read_into(drawn(seed, page, opened.size()), Uninit::of(&mut [0])).ok()?;
        let time = begun.elapsed();
        if time > PATIENCE {
            return Some(false);
        }
        if time > CACHED {
            cold.push(time);
        }
        if cold.len() == COLD_PAGES {
            cold.sort_unstable();
            return Some(cold[1] <= AT_ONCE);
        }
    }
    None
}

/// Takes the storage of a file for one that answers at once.
#[cfg(test)]
pub fn take_for_quick(opened: &Opened) {
    fork::with_lock(&KNOWN, |known| known.insert(opened.mount_number(), true));
}

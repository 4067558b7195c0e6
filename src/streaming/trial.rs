//! A short timed trial: does a mount deliver the bytes of a stream so much faster past the page cache that the cache is
//! not worth filling?
//!
//! Without the cache, the next program has to read the bytes from the mount again. Direct reads pay if they take less
//! than half the time: then even a program that is started twice loses nothing.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use crate::allocate;
use crate::error::{Error, Result};
use crate::fetch::crew::{KeepGoing, Limits, PERIOD};
use crate::fetch::next::Next;
use crate::mapped_file::{Opened, page_cache};
use crate::os::process::fork;
use crate::slicing::PIECE_BYTES;

use super::engine::Stream;
use super::options::{CacheUse, StreamOptions};
use super::plan::{PLAN, Want};
use super::sample::drawn;

/// Number of pieces that are read in each way, in parallel.
const PIECES: usize = 64;
/// Memory for the pieces of one way.
pub const MEMORY_BYTES: u64 = PIECES as u64 * PIECE_BYTES;
/// A shorter stream ends before a trial pays off: the trial reads 128 MiB.
pub const LEAST_BYTES: u64 = 2 << 30;
/// A trial that takes longer is abandoned.
const PATIENCE: Duration = Duration::from_secs(2);

/// The result of a trial.
#[derive(Debug, Clone)]
pub struct Trial {
    pub is_direct_better: bool,
    pub facts: String,
}

impl Trial {
    /// Compares the times for the same number of pieces.
    fn by_times(cached: Duration, direct: Duration) -> Self {
        let mib = PIECE_BYTES >> 20;
        let facts = format!(
            "{PIECES} reads of {mib} MiB side by side took {direct:.1?} past the page cache and {cached:.1?} through it"
        );
        Self { is_direct_better: direct * 2 < cached, facts }
    }
}

/// The trials of all mounts, by device number.
static KNOWN: Mutex<BTreeMap<(u64, u64), Trial>> = Mutex::new(BTreeMap::new());

/// Returns the trial of a mount. The first call runs it, on pieces of the wants in this file. Returns `None` if there
/// are too few pieces, if any part of the file is in the page cache, or if the trial fails or is stopped.
pub fn of_mount(
    opened: &Arc<Opened>,
    wants: &[&Want],
    seed: u64,
    keep_going: &mut KeepGoing<'_>,
) -> Option<Trial> {
    let mount = opened.mount_number();
    if let Some(known) = fork::with_lock(&KNOWN, |known| known.get(&mount).cloned()) {
        return Some(known);
    }
    // The trial opens the file again, and on FUSE that would drop the cached pages.
    if page_cache::holds_pages(opened) {
        return None;
    }
    let places = drawn_places(wants, seed)?;
    let (cached, direct): (Vec<_>, Vec<_>) = places.chunks_exact(2).map(|pair| (pair[0], pair[1])).unzip();
    let found = compared(opened, &cached, &direct, keep_going).ok()?;
    let found = found.unwrap_or_else(|| Trial {
        is_direct_better: false,
        facts: format!("reads of {PIECES} MiB side by side take more than {PATIENCE:?}"),
    });
    fork::with_lock(&KNOWN, |known| known.insert(mount, found.clone()));
    Some(found)
}

/// Reads pieces in both ways. Returns `None` if that takes too long.
fn compared(
    opened: &Arc<Opened>,
    cached: &[u64],
    direct: &[u64],
    keep_going: &mut KeepGoing<'_>,
) -> Result<Option<Trial>> {
    let Some(cached) = timed(opened, cached, CacheUse::Fill, keep_going)? else { return Ok(None) };
    if let Some(refusal) = opened.direct_refusal() {
        return Ok(Some(Trial { is_direct_better: false, facts: refusal }));
    }
    let Some(direct) = timed(opened, direct, CacheUse::Bypass, keep_going)? else { return Ok(None) };
    Ok(Some(Trial::by_times(cached, direct)))
}

/// Draws whole pieces that lie inside wanted tensors and returns their offsets in ascending order. A piece may span
/// several adjacent tensors.
fn drawn_places(wants: &[&Want], seed: u64) -> Option<Vec<u64>> {
    let pieces = |run: &Range<u64>| {
        let first = run.start.div_ceil(PIECE_BYTES);
        first..(run.end / PIECE_BYTES).max(first)
    };
    let whole = wants.iter().filter(|want| want.selection.is_none());
    let ranges = whole.map(|want| want.offset..want.offset + want.len);
    let mut ranges = allocate::collected(ranges, PLAN).ok()?;
    ranges.sort_unstable_by_key(|range| (range.start, range.end));
    let runs = ranges.chunk_by(|one, next| one.end == next.start);
    let runs = runs.map(|run| run[0].start..run[run.len() - 1].end);
    let places = allocate::collected(runs.flat_map(|run| pieces(&run)), PLAN).ok()?;
    if places.len() < 4 * PIECES {
        return None;
    }
    let mut found = BTreeSet::new();
    for number in 0.. {
        found.insert(places[drawn(seed, number, places.len() as u64) as usize] * PIECE_BYTES);
        if found.len() == 2 * PIECES {
            break;
        }
    }
    Some(found.into_iter().collect())
}

/// Reads pieces in parallel and returns how long that takes; `None` if it takes too long. Returns an error if the
/// caller wants to stop.
fn timed(
    opened: &Arc<Opened>,
    places: &[u64],
    cache: CacheUse,
    keep_going: &mut KeepGoing<'_>,
) -> Result<Option<Duration>> {
    let want = |&offset: &u64| Want { file: 0, offset, len: PIECE_BYTES, selection: None };
    let wants: Vec<_> = places.iter().map(want).collect();
    let readers = Limits { first: PIECES, most: PIECES };
    let options = StreamOptions { memory_bytes: u64::MAX, readers, cache, ..StreamOptions::default() };
    let file = opened.clone();
    let begun = Instant::now();
    let stream = Stream::start(&wants, Box::new(move |_| Ok(file.clone())), None, options, None)?;
    loop {
        match stream.next(PERIOD)? {
            Next::End => return Ok(Some(begun.elapsed())),
            Next::NotYet if !keep_going() => return Err(Error::argument("the trial was stopped")),
            Next::NotYet if begun.elapsed() > PATIENCE => return Ok(None),
            Next::Ready(_) | Next::NotYet => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn direct_reads_pay_if_they_take_less_than_half_the_time() {
        let better = Trial::by_times(Duration::from_millis(1001), Duration::from_millis(500));
        assert!(better.is_direct_better);
        assert_eq!(
            better.facts,
            "64 reads of 1 MiB side by side took 500.0ms past the page cache and 1.0s through it"
        );
        assert!(!Trial::by_times(Duration::from_secs(1), Duration::from_millis(500)).is_direct_better);
    }
}

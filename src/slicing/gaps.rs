//! Which gaps between the parts of a selection are read through: those that cost less than a request.

use std::time::{Duration, Instant};

use crate::mapped_file::Opened;
use crate::os::memory::Uninit;

use super::plan::{GAP_BYTES, SlicePlan};
use super::selection::Selection;

/// Selections of fewer blocks are read before a measurement pays.
const LEAST_BLOCKS: u64 = 32;
/// Reads that are timed. The fastest counts: it is the one that waited for nothing but the storage.
const TIMED_READS: u64 = 2;
const TIMED_BYTES: usize = 64;
/// Runs and the gaps behind them together, so that at least a part of what is read is wanted.
const MOST_PERIOD_BYTES: u64 = 64 << 10;
/// What storage gives while a request waits: 500 MB/s, shared with the 63 others that wait beside it.
const BYTES_PER_MICROSECOND: u64 = 8;

/// Makes the plan of a selection of a tensor, whose bytes begin at `data_offset` of the file.
///
/// Where the file answers a request after milliseconds, larger gaps are read through than [`GAP_BYTES`]. That is measured
/// the first time that it matters.
pub fn plan_for(opened: &Opened, data_offset: u64, selection: Selection) -> SlicePlan {
    let fine = SlicePlan::new(selection);
    let Some(runs) = sparse_runs(&fine.selection) else { return fine };
    let most_bytes = MOST_PERIOD_BYTES.saturating_sub(runs.bytes);
    if runs.gap_bytes >= most_bytes || fine.block_count() < LEAST_BLOCKS {
        return fine;
    }
    let known = opened.request_time.get().copied();
    let Some(request_time) = known.or_else(|| measured(opened, data_offset, &runs)) else { return fine };
    let gap_bytes = affordable_bytes(request_time).min(most_bytes);
    if gap_bytes <= GAP_BYTES {
        return fine;
    }
    // What is fast may have come out of the page cache, and tells nothing of other parts of the file.
    let _ = opened.request_time.set(request_time);
    SlicePlan::with_gap(fine.selection, gap_bytes)
}

/// Runs of wanted bytes that are evenly spaced, with gaps that are not read through for free.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct SparseRuns {
    /// Where the first one begins in the tensor.
    start: u64,
    bytes: u64,
    gap_bytes: u64,
    count: u64,
}

fn sparse_runs(selection: &Selection) -> Option<SparseRuns> {
    let axis = selection.axes.iter().rfind(|axis| axis.count > 1 && axis.gap() >= GAP_BYTES)?;
    let (start, bytes, gap_bytes) = (selection.start, axis.span, axis.gap());
    Some(SparseRuns { start, bytes, gap_bytes, count: axis.count })
}

/// Returns the bytes that come in the time that one request of many costs.
fn affordable_bytes(request_time: Duration) -> u64 {
    u64::try_from(request_time.as_micros()).unwrap_or(u64::MAX).saturating_mul(BYTES_PER_MICROSECOND)
}

/// Times reads of wanted bytes. Returns `None` where one fails: the plan's own reads will tell why.
fn measured(opened: &Opened, data_offset: u64, runs: &SparseRuns) -> Option<Duration> {
    let reader = opened.exact_reader();
    let timed = |read: u64| {
        let run = read * (runs.count - 1) / (TIMED_READS - 1);
        let offset = data_offset + runs.start + run * (runs.bytes + runs.gap_bytes);
        let mut bytes = [0; TIMED_BYTES];
        let len = TIMED_BYTES.min(runs.bytes as usize);
        let begun = Instant::now();
        reader.read_into(offset, Uninit::of(&mut bytes[..len])).ok().map(|()| begun.elapsed())
    };
    (0..TIMED_READS).map(timed).collect::<Option<Vec<_>>>()?.into_iter().min()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_disk_reads_no_gap_and_a_slow_mount_some() {
        assert!(affordable_bytes(Duration::from_micros(100)) < GAP_BYTES);
        assert_eq!(affordable_bytes(Duration::from_millis(10)), 80_000);
        assert_eq!(affordable_bytes(Duration::MAX), u64::MAX);
    }
}

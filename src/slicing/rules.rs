//! The rules by which a selection is read from a file: which gaps are read through, and how long the pieces are.

use std::time::{Duration, Instant};

use crate::mapped_file::Opened;
use crate::os::memory::Uninit;

use super::plan::{GAP_BYTES, PIECE_BYTES, SlicePlan};
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

/// The shortest piece: one request of FUSE, which by default sends a longer read as several requests, one after another.
const LEAST_PIECE_BYTES: u64 = 128 << 10;

/// Makes the plan by which up to `max_readers` threads read a selection of a tensor, whose bytes begin at `data_offset` of
/// the file.
///
/// Where the file answers a request after milliseconds, larger gaps are read through than [`GAP_BYTES`]. That is measured
/// the first time that it matters. Where reads bypass the page cache the pieces are short enough that each thread has one.
pub fn plan_for(opened: &Opened, data_offset: u64, selection: Selection, max_readers: u64) -> SlicePlan {
    let plan = SlicePlan::new(selection);
    let plan = match larger_gap(opened, data_offset, &plan) {
        Some(gap_bytes) => SlicePlan::with_gap(plan.selection, gap_bytes),
        None => plan,
    };
    if opened.reads_from_cache() {
        return plan;
    }
    let (_, span_bytes) = plan.selection.extent();
    plan.in_pieces_of(piece_bytes_for(span_bytes, max_readers))
}

/// Returns the length of the pieces of a span: each thread has one, if that is not too little to read in one go.
fn piece_bytes_for(span_bytes: u64, max_readers: u64) -> u64 {
    (span_bytes / max_readers.max(1)).clamp(LEAST_PIECE_BYTES, PIECE_BYTES)
}

/// Returns up to which length gaps are read through, if that is more than [`GAP_BYTES`].
fn larger_gap(opened: &Opened, data_offset: u64, fine: &SlicePlan) -> Option<u64> {
    let runs = sparse_runs(&fine.selection)?;
    let most_bytes = MOST_PERIOD_BYTES.saturating_sub(runs.bytes);
    if runs.gap_bytes >= most_bytes || fine.block_count() < LEAST_BLOCKS {
        return None;
    }
    let known = opened.request_time.get().copied();
    let request_time = known.or_else(|| measured(opened, data_offset, &runs, Instant::now))?;
    let gap_bytes = affordable_bytes(request_time).min(most_bytes);
    if gap_bytes <= GAP_BYTES {
        return None;
    }
    // What is fast may have come out of the page cache, and tells nothing of other parts of the file.
    let _ = opened.request_time.set(request_time);
    Some(gap_bytes)
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
fn measured(
    opened: &Opened,
    data_offset: u64,
    runs: &SparseRuns,
    now: impl Fn() -> Instant,
) -> Option<Duration> {
    let reader = opened.exact_reader();
    let timed = |read: u64| {
        let run = read * (runs.count - 1) / (TIMED_READS - 1);
        let offset = data_offset + runs.start + run * (runs.bytes + runs.gap_bytes);
        let mut bytes = [0; TIMED_BYTES];
        let len = TIMED_BYTES.min(runs.bytes as usize);
        let begun = now();
        reader.read_into(offset, Uninit::of(&mut bytes[..len])).ok().map(|()| now() - begun)
    };
    (0..TIMED_READS).map(timed).collect::<Option<Vec<_>>>()?.into_iter().min()
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;
    use std::sync::Arc;

    use super::*;
    use crate::mapped_file::{MappedFile, RequestedMode};

    const ROW_BYTES: u64 = 4096;

    fn opened(rows: u64) -> Arc<Opened> {
        let file = tempfile::NamedTempFile::new().expect("a file");
        file.as_file().set_len(rows * ROW_BYTES).expect("room");
        MappedFile::open(file.path(), RequestedMode::Read).and_then(|file| file.opened()).expect("open")
    }

    /// Every other one of `2 * count` rows.
    fn every_other_row(count: u64) -> Selection {
        let (shape, strides) = ([count, ROW_BYTES], [2 * ROW_BYTES as i64, 1]);
        Selection::new(0, &shape, &strides, 1, 2 * count * ROW_BYTES).expect("in bounds")
    }

    #[test]
    fn gaps_are_read_where_requests_are_known_to_be_slow() {
        for (milliseconds, blocks) in [(0, 64), (10, 1)] {
            let opened = opened(128);
            opened.request_time.set(Duration::from_millis(milliseconds)).expect("not known yet");
            let plan = plan_for(&opened, 0, every_other_row(64), 1);
            assert_eq!(plan.block_count(), blocks, "{milliseconds} ms per request");
        }
    }

    #[test]
    fn the_faster_of_two_timed_reads_counts() {
        let opened = opened(1);
        let runs = SparseRuns { start: 0, bytes: 64, gap_bytes: 192, count: 16 };
        let (start, looks) = (Instant::now(), Cell::new(0));
        // When the first read begins and ends, and the second one.
        let milliseconds = [0, 9, 9, 11];
        let now = || start + Duration::from_millis(milliseconds[looks.replace(looks.get() + 1)]);
        assert_eq!(measured(&opened, 0, &runs, now), Some(Duration::from_millis(2)));
    }

    #[test]
    fn a_disk_reads_no_gap_and_a_slow_mount_some() {
        assert!(affordable_bytes(Duration::from_micros(100)) < GAP_BYTES);
        assert_eq!(affordable_bytes(Duration::from_millis(10)), 80_000);
        assert_eq!(affordable_bytes(Duration::MAX), u64::MAX);
    }

    #[test]
    fn each_thread_has_a_piece_and_one_thread_reads_in_one_go() {
        assert_eq!(piece_bytes_for(8 << 20, 32), 256 << 10);
        assert_eq!(piece_bytes_for(1 << 20, 32), LEAST_PIECE_BYTES);
        assert_eq!(piece_bytes_for(1 << 30, 32), PIECE_BYTES);
        assert_eq!(piece_bytes_for(PIECE_BYTES, 1), PIECE_BYTES);
    }
}

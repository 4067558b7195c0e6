//! Rules for reading a selection from a file: the largest gap to read, and the size of pieces.

use std::time::{Duration, Instant};

use crate::mapped_file::Opened;
use crate::os::memory::Uninit;

use super::plan::{GAP_BYTES, PIECE_BYTES, SlicePlan};
use super::selection::Selection;

/// Minimum number of blocks for which a measurement pays off.
const LEAST_BLOCKS: u64 = 32;
/// Number of timed reads. The fastest counts, because a slow one may have waited for a processor.
const TIMED_READS: u64 = 2;
const TIMED_BYTES: usize = 64;
/// Limit on a run plus the gap behind it, so that a minimum share of the bytes read is wanted.
const MOST_PERIOD_BYTES: u64 = 64 << 10;
/// One request's share of the bandwidth: 500 MB/s over 64 requests in flight.
const BYTES_PER_MICROSECOND: u64 = 8;

/// Minimum length of a piece: one FUSE request. By default FUSE splits a longer read, and sends the parts one by one.
const LEAST_PIECE_BYTES: u64 = 128 << 10;

/// Plans how up to `max_readers` threads read a selection of a tensor. The tensor begins at `data_offset` of the file.
///
/// If a request takes milliseconds, gaps larger than [`GAP_BYTES`] are also read: for example 80 kB at 10 ms per
/// request. The first selection with many runs measures this time. If reads bypass the page cache, each thread gets a
/// piece.
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

/// Returns the length of the pieces of a span: one per thread, within limits.
fn piece_bytes_for(span_bytes: u64, max_readers: u64) -> u64 {
    (span_bytes / max_readers.max(1)).clamp(LEAST_PIECE_BYTES, PIECE_BYTES)
}

/// Returns the size of the largest gap to read, if it exceeds [`GAP_BYTES`].
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
    // Remember a slow time, but not a fast one: it may be a hit in the page cache, while other parts are uncached.
    let _ = opened.request_time.set(request_time);
    Some(gap_bytes)
}

/// Evenly spaced runs of wanted bytes, with gaps that are too large to read for free.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct SparseRuns {
    /// Offset of the first run in the tensor, in bytes.
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

/// Returns the number of bytes that arrive in the time of one request.
fn affordable_bytes(request_time: Duration) -> u64 {
    u64::try_from(request_time.as_micros()).unwrap_or(u64::MAX).saturating_mul(BYTES_PER_MICROSECOND)
}

/// Times reads of wanted bytes. Returns `None` if one fails: the plan's own reads will report the error.
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

    /// Every other row of `2 * count` rows.
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
        // The beginning and the end of the first read, then of the second.
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

//! Slices, compared with a naive implementation of indexing: element by element, byte by byte.

use pagestream::internals::{
    Error, GAP_BYTES, MAX_READERS, MappedFile, PIECE_BYTES, ReadCause, RequestedMode, Selection, SlicePlan,
    Uninit, fill, fill_run, plan_for,
};
use std::path::Path;
use std::sync::atomic::{AtomicUsize, Ordering};

use proptest::prelude::*;
use tempfile::TempDir;

/// An indexed tensor, in the form of the arguments of [`Selection::new`].
#[derive(Debug, Clone)]
struct Indexed {
    first: u64,
    shape: Vec<u64>,
    strides: Vec<i64>,
    item: u64,
    tensor_bytes: u64,
}

impl Indexed {
    /// Indexes a contiguous tensor by (start, count, step) for each dimension.
    fn new(dimensions: &[u64], parts: &[(u64, u64, i64)], item: u64) -> Self {
        let tensor_bytes = dimensions.iter().product::<u64>() * item;
        let (mut first, mut stride, mut strides) = (0, item, Vec::new());
        for (&size, &(start, _, step)) in dimensions.iter().zip(parts).rev() {
            first += start * stride;
            strides.insert(0, step * stride as i64);
            stride *= size;
        }
        let shape = parts.iter().map(|&(_, count, _)| count).collect();
        Self { first, shape, strides, item, tensor_bytes }
    }

    fn selection(&self) -> Result<Selection, Error> {
        Selection::new(self.first, &self.shape, &self.strides, self.item, self.tensor_bytes)
    }

    fn plan(&self, gap_bytes: u64) -> SlicePlan {
        SlicePlan::with_gap(self.selection().expect("made by indexing"), gap_bytes)
    }

    /// Returns the position in the tensor of each byte of the result.
    fn places(&self) -> Vec<u64> {
        let mut starts = vec![self.first as i64];
        for (&count, &stride) in self.shape.iter().zip(&self.strides) {
            let indices = |start: i64| (0..count as i64).map(move |index| start + index * stride);
            starts = starts.into_iter().flat_map(indices).collect();
        }
        let item = self.item as i64;
        starts.into_iter().flat_map(|start| (start..start + item).map(|byte| byte as u64)).collect()
    }
}

fn indexed() -> impl Strategy<Value = Indexed> {
    let part = (1_u64..12).prop_flat_map(|size| {
        (Just(size), 0..size, -4_i64..=4).prop_flat_map(|(size, start, step)| {
            let step = if step == 0 { 1 } else { step };
            let room = if step > 0 { size - start } else { start + 1 };
            let most = room.div_ceil(step.unsigned_abs());
            // Whole dimensions are frequent, because only these can be merged.
            let count = prop_oneof![3 => Just(most), 1 => Just(1), 1 => 0..=most];
            let whole = Just((size, (0, size, 1)));
            prop_oneof![1 => whole, 2 => count.prop_map(move |count| (size, (start, count, step)))]
        })
    });
    let items = prop_oneof![Just(1_u64), Just(2), Just(3), Just(4), Just(8), Just(16)];
    (prop::collection::vec(part, 0..5), items).prop_map(|(parts, item)| {
        let (dimensions, parts): (Vec<_>, Vec<_>) = parts.into_iter().unzip();
        Indexed::new(&dimensions, &parts, item)
    })
}

/// Returns bytes that encode their position.
fn content(len: u64) -> Vec<u8> {
    (0..len).map(|place| (place.wrapping_mul(0x9E37_79B9_7F4A_7C15) >> 56) as u8).collect()
}

fn file_of(folder: &TempDir, bytes: &[u8]) -> std::path::PathBuf {
    let path = folder.path().join("weights");
    std::fs::write(&path, bytes).expect("room on the disk");
    path
}

fn open(path: &Path, mode: RequestedMode) -> MappedFile {
    MappedFile::open(path, mode).expect("a file")
}

fn read(file: &MappedFile, data_offset: u64, plan: &SlicePlan) -> Result<Vec<u8>, Error> {
    let mut out = vec![0xAA; plan.selection.result_bytes as usize];
    let opened = file.opened()?;
    fill(&opened, data_offset, plan, Uninit::of(&mut out), MAX_READERS, &mut || true)?;
    if !out.is_empty() {
        opened.verify_with_server()?;
    }
    Ok(out)
}

/// Checks the guarantees of a plan.
fn check_extents(indexed: &Indexed, gap_bytes: u64, piece_bytes: u64) {
    let plan = indexed.plan(gap_bytes).in_pieces_of(piece_bytes);
    let extents: Vec<(u64, u64)> =
        plan.extents().map(|extent| (extent.range.offset, extent.range.len)).collect();
    let mut wanted = indexed.places();
    wanted.sort_unstable();
    assert!(wanted.windows(2).all(|pair| pair[0] < pair[1]), "no byte twice");
    let mut found = Vec::new();
    let mut rest = wanted.as_slice();
    for &(offset, len) in &extents {
        assert!(0 < len && len <= piece_bytes);
        let inside = rest.partition_point(|&place| place < offset + len);
        let (now, later) = rest.split_at(inside);
        // An extent begins and ends with a wanted byte, and its gaps are within the limit.
        assert_eq!((now[0], now[now.len() - 1]), (offset, offset + len - 1));
        assert!(now.windows(2).all(|pair| pair[1] - pair[0] == 1 || pair[1] - pair[0] - 1 < gap_bytes));
        found.extend_from_slice(now);
        rest = later;
    }
    assert_eq!(found, wanted);
    // All extents that may be joined are joined.
    for pair in extents.windows(2) {
        let end = pair[0].0 + pair[0].1;
        let gap = pair[1].0 - end;
        let joined = pair[1].0 + pair[1].1 - pair[0].0;
        assert!((gap > 0 && gap >= gap_bytes) || joined > piece_bytes, "{extents:?} {gap_bytes}");
    }
    assert!(plan.block_count() >= extents.len() as u64);
    assert_eq!(plan.blocks().count() as u64, plan.block_count());
}

proptest! {
    #![proptest_config(crate::cases(600))]

    #[test]
    fn a_plan_covers_what_is_needed_and_no_gap_beyond_the_rule(
        indexed in indexed(),
        gap_bytes in prop_oneof![Just(0_u64), Just(1), 2..64_u64, Just(GAP_BYTES)],
        piece_bytes in prop_oneof![Just(PIECE_BYTES), 1..200_u64],
    ) {
        check_extents(&indexed, gap_bytes, piece_bytes);
    }

    #[test]
    fn what_is_read_is_what_indexing_means(
        indexed in indexed(),
        gap_bytes in prop_oneof![Just(0_u64), 1..64_u64, Just(GAP_BYTES)],
        piece_bytes in prop_oneof![Just(PIECE_BYTES), 1..200_u64],
        data_offset in 0_u64..9,
    ) {
        let folder = TempDir::new().expect("a folder");
        let bytes = content(data_offset + indexed.tensor_bytes);
        let path = file_of(&folder, &bytes);
        let places = indexed.places();
        let expected: Vec<u8> =
            places.iter().map(|&place| bytes[(data_offset + place) as usize]).collect();
        for mode in [RequestedMode::Shared, RequestedMode::Private, RequestedMode::Read] {
            let plan = indexed.plan(gap_bytes).in_pieces_of(piece_bytes);
            let found = read(&open(&path, mode), data_offset, &plan);
            prop_assert_eq!(found.as_ref(), Ok(&expected));
        }
    }
}

/// Returns selections larger than a piece: split along rows, along columns or within a run, and with joined blocks.
fn large() -> Vec<Indexed> {
    let (rows, columns) = (13, 100_003);
    vec![
        Indexed::new(&[rows, columns], &[(0, rows, 1), (0, columns, 1)], 1),
        Indexed::new(&[rows, columns], &[(0, rows, 1), (0, columns / 2, 2)], 1),
        Indexed::new(&[rows, columns], &[(rows - 1, rows, -1), (columns - 1, columns, -1)], 1),
        Indexed::new(&[rows, columns], &[(rows - 1, rows, -1), (1, columns - 1, 1)], 1),
        Indexed::new(&[rows, columns], &[(0, rows / 2, 2), (7, columns - 8, 1)], 1),
        Indexed::new(&[2, 1_200_000], &[(1, 2, -1), (3, 1_199_990, 1)], 1),
        Indexed::new(&[2, 150_000], &[(1, 2, -1), (149_999, 75_000, -2)], 8),
        Indexed::new(&[50, 3, 3000], &[(0, 50, 1), (0, 2, 2), (0, 3000, 1)], 4),
        Indexed::new(&[50, 3, 3000], &[(49, 50, -1), (2, 2, -2), (0, 3000, 1)], 4),
    ]
}

#[test]
fn runs_larger_than_a_piece_are_cut() {
    let folder = TempDir::new().expect("a folder");
    let bytes = content(2_400_000);
    let path = file_of(&folder, &bytes);
    for indexed in large() {
        for gap_bytes in [512, GAP_BYTES] {
            check_extents(&indexed, gap_bytes, PIECE_BYTES);
        }
        let expected: Vec<u8> = indexed.places().iter().map(|&place| bytes[place as usize]).collect();
        for mode in [RequestedMode::Shared, RequestedMode::Private, RequestedMode::Read] {
            let found = read(&open(&path, mode), 0, &indexed.plan(GAP_BYTES)).expect("readable");
            assert!(found == expected, "{indexed:?} {mode:?}");
        }
    }
}

#[test]
fn past_the_page_cache_each_thread_has_a_piece() {
    let folder = TempDir::new().expect("a folder");
    let path = file_of(&folder, &content(PIECE_BYTES));
    // The left halves of rows, including the gaps between them.
    let selection = Indexed::new(&[512, 2048], &[(0, 512, 1), (0, 1024, 1)], 1).selection().expect("inside");
    let pieces = |mode, max_readers| {
        let opened = open(&path, mode).opened().expect("open");
        plan_for(&opened, 0, selection.clone(), max_readers).extents().count()
    };
    assert_eq!(pieces(RequestedMode::Shared, MAX_READERS), 1, "the kernel is asked ahead");
    assert_eq!(pieces(RequestedMode::Read, MAX_READERS), 8, "of 128 KiB");
    assert_eq!(pieces(RequestedMode::Read, 4), 4);
    assert_eq!(pieces(RequestedMode::Read, 1), 1, "nobody reads the others");
}

/// Selects half of the last row of one matrix and half of the first row of another. The gap between these halves is
/// small, unlike the gaps between the rows of one matrix.
#[test]
fn neighbours_along_an_outer_axis_are_joined() {
    let indexed = Indexed::new(&[3, 4, 8192], &[(0, 3, 1), (0, 2, 3), (0, 8192, 1)], 1);
    let extents: Vec<_> =
        indexed.plan(GAP_BYTES).extents().map(|found| (found.range.offset, found.range.len)).collect();
    let row = 8192;
    assert_eq!(extents, [(0, row), (3 * row, 2 * row), (7 * row, 2 * row), (11 * row, row)]);
}

#[test]
fn a_read_is_as_long_as_a_piece_and_no_longer() {
    let lengths = |indexed: Indexed| {
        check_extents(&indexed, GAP_BYTES, PIECE_BYTES);
        indexed.plan(GAP_BYTES).extents().map(|extent| extent.range.len).collect::<Vec<_>>()
    };
    let run = |bytes| Indexed::new(&[bytes], &[(0, bytes, 1)], 1);
    assert_eq!(lengths(run(PIECE_BYTES)), [PIECE_BYTES]);
    assert_eq!(lengths(run(PIECE_BYTES + 1)), [PIECE_BYTES, 1]);
    // The last row of one matrix and the first row of the other, adjacent or one byte apart.
    let half = PIECE_BYTES / 2;
    let rows =
        |bytes, start| Indexed::new(&[2, 4, bytes], &[(0, 2, 1), (0, 2, 3), (start, bytes - start, 1)], 1);
    assert_eq!(lengths(rows(half, 0)), [half, PIECE_BYTES, half]);
    assert_eq!(lengths(rows(half + 1, 1)), [half; 4]);
}

#[test]
fn a_plan_of_a_huge_tensor_takes_no_memory() {
    // Selects a few bytes at a time from every other row of 2^40 rows of 2^20 bytes.
    let (rows, columns) = (1 << 40, 1 << 20);
    let indexed = Indexed::new(&[rows, columns], &[(0, rows / 2, 2), (5, columns / 8192, 8192)], 1);
    let plan = indexed.plan(GAP_BYTES);
    assert_eq!(plan.block_count(), (rows / 2) * (columns / 8192));
    assert_eq!(plan.selection.result_bytes, plan.block_count());
    let places: Vec<_> =
        plan.extents().take(130).map(|extent| (extent.range.offset, extent.range.len)).collect();
    assert_eq!(places[..2], [(5, 1), (8197, 1)]);
    assert_eq!(places[128..], [(2 * columns + 5, 1), (2 * columns + 8197, 1)]);
}

#[test]
fn invalid_selections_are_refused() {
    let refused = |first, shape: &[u64], strides: &[i64], item| {
        matches!(Selection::new(first, shape, strides, item, 100), Err(Error::Argument { .. }))
    };
    assert!(!refused(0, &[10, 10], &[10, 1], 1));
    assert!(refused(1, &[10, 10], &[10, 1], 1), "beyond the end");
    assert!(refused(0, &[10, 10], &[-10, 1], 1), "before the beginning");
    assert!(refused(100, &[], &[], 1));
    assert!(refused(0, &[2], &[1, 1], 1), "lengths and strides");
    assert!(refused(0, &[2], &[1], 0), "no bytes");
    assert!(refused(0, &[2, 2], &[1, 1], 1), "bytes twice");
    assert!(refused(0, &[3], &[0], 1), "bytes twice");
    assert!(refused(0, &[10, 10], &[1, 10], 1), "axes in another order");
    for huge in [u64::MAX, u64::MAX / 2, 1 << 63] {
        assert!(refused(0, &[huge], &[1], 1));
        assert!(refused(huge, &[2], &[1], 1));
        assert!(refused(0, &[huge, huge], &[i64::MAX, 1], 1));
        assert!(refused(0, &[2], &[i64::MIN], 1));
        assert!(refused(0, &[2], &[1], huge));
        assert!(!refused(huge, &[huge, 0, huge], &[i64::MIN, 0, 7], 1), "empty");
    }
}

#[test]
fn an_empty_selection_reads_nothing() {
    let folder = TempDir::new().expect("a folder");
    let path = file_of(&folder, b"abc");
    let file = open(&path, RequestedMode::Read);
    std::fs::write(&path, b"").expect("writable");
    let empty = SlicePlan::new(Selection::new(0, &[3, 0], &[1, 1], 1, 3).expect("in the tensor"));
    assert_eq!((empty.blocks().count(), empty.extents().count(), empty.block_count()), (0, 0, 0));
    assert_eq!(read(&file, 0, &empty), Ok(Vec::new()));
}

#[test]
fn room_of_another_size_is_refused() {
    let folder = TempDir::new().expect("a folder");
    let file = open(&file_of(&folder, b"abc"), RequestedMode::Shared);
    let plan = SlicePlan::new(Selection::new(0, &[3], &[1], 1, 3).expect("in the tensor"));
    let opened = file.opened().expect("open");
    let found = fill(&opened, 0, &plan, Uninit::of(&mut [0; 2]), MAX_READERS, &mut || true);
    assert!(matches!(found, Err(Error::Argument { .. })));
}

#[test]
fn a_file_that_was_cut_is_an_error_in_every_mode() {
    let wanted = Indexed::new(&[64, 65_536], &[(0, 64, 1), (0, 8, 8192)], 1);
    for mode in [RequestedMode::Shared, RequestedMode::Private, RequestedMode::Read] {
        for size in [0, 100, 65_536 * 63 + 65_536 - 8] {
            let folder = TempDir::new().expect("a folder");
            let path = file_of(&folder, &content(64 * 65_536));
            let file = open(&path, mode);
            std::fs::OpenOptions::new()
                .write(true)
                .open(&path)
                .and_then(|file| file.set_len(size))
                .expect("cut");
            let found = read(&file, 0, &wanted.plan(GAP_BYTES));
            let Err(Error::MappedRead { cause: ReadCause::Truncated { size_now, .. }, .. }) = found else {
                panic!("{mode:?} {size}: {found:?}")
            };
            assert_eq!(size_now, size);
        }
    }
}

#[test]
fn a_file_that_was_rewritten_is_an_error_in_every_mode() {
    let wanted = Indexed::new(&[64, 4096], &[(0, 64, 1), (0, 8, 1)], 1);
    for mode in [RequestedMode::Shared, RequestedMode::Private, RequestedMode::Read] {
        let folder = TempDir::new().expect("a folder");
        let path = file_of(&folder, &content(64 * 4096));
        let file = open(&path, mode);
        let modified = || std::fs::metadata(&path).and_then(|found| found.modified()).expect("a file");
        let before = modified();
        // Waits until the clock advances, because its ticks take a few milliseconds.
        while modified() == before {
            std::fs::write(&path, content(64 * 4096)).expect("writable");
        }
        let found = read(&file, 0, &wanted.plan(GAP_BYTES));
        assert!(matches!(found, Err(Error::FileChanged { .. })), "{mode:?}: {found:?}");
    }
}

#[test]
fn a_read_stops_on_request() {
    let folder = TempDir::new().expect("a folder");
    // No machine reads this many rows within a period.
    let rows = 5_000_000;
    let path = folder.path().join("sparse");
    std::fs::File::create(&path).and_then(|file| file.set_len(rows * 8192)).expect("a sparse file");
    let wanted = Indexed::new(&[rows, 8192], &[(0, rows, 1), (0, 1, 1)], 1);
    let calls = AtomicUsize::new(0);
    let mut out = vec![1_u8; rows as usize];
    let file = open(&path, RequestedMode::Read);
    let stop = &mut || {
        calls.fetch_add(1, Ordering::Relaxed);
        false
    };
    let opened = file.opened().expect("open");
    fill(&opened, 0, &wanted.plan(0), Uninit::of(&mut out), 1, stop).expect("no failure");
    assert_eq!(calls.load(Ordering::Relaxed), 1);
}

#[test]
fn a_run_is_filled_by_several_threads() {
    let folder = TempDir::new().expect("a folder");
    let bytes = content((5 << 20) + 77);
    let path = file_of(&folder, &bytes);
    for mode in [RequestedMode::Shared, RequestedMode::Read] {
        let file = open(&path, mode);
        let opened = file.opened().expect("open");
        for (offset, len) in [(0, bytes.len()), (13, 3 << 20), (4096, 1), (7, 0)] {
            for threads in [1, 3, 64] {
                let mut out = vec![0xAA; len];
                fill_run(&opened, offset, Uninit::of(&mut out), threads).expect("readable");
                assert!(out == bytes[offset as usize..][..len]);
            }
        }
        let mut out = vec![0; 2 << 20];
        let beyond = fill_run(&opened, 4 << 20, Uninit::of(&mut out), 3);
        assert!(matches!(beyond, Err(Error::OutOfRange { .. })), "{beyond:?}");
    }
}

/// Threads that read slices of one file at the same time share its descriptor and the advice given to the kernel.
#[test]
fn many_threads_read_at_once() {
    let folder = TempDir::new().expect("a folder");
    let bytes = content(512 * 16_384);
    let file = open(&file_of(&folder, &bytes), RequestedMode::Shared);
    std::thread::scope(|scope| {
        for column in 0..8_u64 {
            let (file, bytes) = (&file, &bytes);
            scope.spawn(move || {
                let wanted = Indexed::new(&[512, 16_384], &[(511, 512, -1), (column * 1000, 700, 1)], 1);
                let expected: Vec<u8> = wanted.places().iter().map(|&place| bytes[place as usize]).collect();
                for _ in 0..20 {
                    assert!(read(file, 0, &wanted.plan(GAP_BYTES)) == Ok(expected.clone()));
                }
            });
        }
    });
}

proptest! {
    #![proptest_config(crate::cases(256))]

    #[test]
    fn the_parts_of_a_cut_selection_are_the_selection(indexed in indexed(), max_bytes in 1_u64..200) {
        let folder = tempfile::tempdir().expect("a folder");
        let bytes = content(indexed.tensor_bytes);
        let file = open(&file_of(&folder, &bytes), RequestedMode::Read);
        let expected: Vec<_> = indexed.places().iter().map(|&place| bytes[place as usize]).collect();
        let selection = indexed.selection().expect("made by indexing");
        let mut found = vec![None; expected.len()];
        let mut end = 0;
        for (part, range) in selection.cut(max_bytes) {
            prop_assert_eq!(part.result_bytes, range.end - range.start);
            let plan = SlicePlan::with_gap(part, 1);
            let blocks: Vec<_> = plan.extents().map(|extent| extent.range).collect();
            let (first, last) = (blocks[0], blocks[blocks.len() - 1]);
            prop_assert!(first.offset >= end, "in the order of the file");
            end = last.end();
            prop_assert!(last.end() - first.offset <= max_bytes);
            let read = read(&file, 0, &plan).expect("a good file");
            for (place, byte) in found[range.start as usize..range.end as usize].iter_mut().zip(read) {
                prop_assert_eq!(place.replace(byte), None, "each byte once");
            }
        }
        prop_assert_eq!(found.into_iter().collect::<Option<Vec<_>>>(), Some(expected));
    }
}

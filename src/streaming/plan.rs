//! Turns wants into groups and pieces, before any byte is read.

use std::ops::Range;

use crate::allocate::{self, OutOfMemory};
use crate::fetch::ranges::{ByteRange, FileId, MergeRule};
use crate::os::file::direct::ALIGN_BYTES;
use crate::slicing::{GAP_BYTES, PIECE_BYTES, Selection};

/// Largest group of neighbouring tensors. They share one block of memory, so a tensor that the program keeps holds back
/// no more than this.
pub const GROUP_BYTES: u64 = 1 << 20;

/// A group's memory has the same page alignment as its bytes in the file, as direct I/O requires.
pub const PAGE_BYTES: u64 = ALIGN_BYTES as u64;

/// Many mounts split a read into requests of this length and make them one after another. Pieces are small at first, so
/// that several threads share the first tensors.
pub const REQUEST_BYTES: u64 = 128 << 10;
/// The purpose of memory for the plan of a stream.
pub const PLAN: &str = "the list of tensors to read";

/// Lengths of pieces, each with the number of planned bytes after which it applies. Other mounts make one request of 1
/// MiB, so pieces grow to that length once all threads have work.
const PIECES: [(u64, u64); 3] =
    [(0, REQUEST_BYTES), (1 << 20, 2 * REQUEST_BYTES), (FIRST_BYTES, PIECE_BYTES)];
/// Limit on read-ahead before the program has taken a tensor. It gives the first tensor almost all of the storage's
/// bandwidth.
pub const FIRST_BYTES: u64 = 16 << 20;

/// The extent of a read for a run.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Reads {
    /// Exactly the bytes of the run.
    Exact,
    /// All pages that the run touches, as direct I/O requires. The last one may be cut by the end of the file.
    WholePages,
}

/// A tensor of a file, or a part of it, that a stream is to read.
#[derive(Debug, Clone)]
pub struct Want {
    pub file: usize,
    /// The offset of the tensor's bytes in the file.
    pub offset: u64,
    pub len: u64,
    /// The wanted part; `None` for the whole tensor.
    pub selection: Option<Selection>,
}

impl Want {
    /// Returns the wanted part; `None` for the whole tensor.
    pub fn part(&self) -> Option<&Selection> {
        self.selection.as_ref().filter(|part| !part.is_run() || part.result_bytes < self.len)
    }

    /// Returns the offset and length of the wanted bytes if they are contiguous.
    fn run(&self) -> Option<(u64, u64)> {
        match &self.selection {
            None => Some((self.offset, self.len)),
            Some(part) if part.is_run() => Some((self.offset + part.extent().0, part.result_bytes)),
            Some(_) => None,
        }
    }
}

/// The work of a thread in one go.
#[derive(Debug, Clone)]
pub enum ReadPiece {
    /// A run of bytes of the file.
    Run { offset: u64 },
    /// A part of a tensor that begins at `data_offset`.
    Part { data_offset: u64, selection: Selection },
}

/// The place of a wanted tensor in the memory of its group.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TensorPlace {
    pub want: usize,
    pub offset: usize,
    pub len: usize,
}

/// Tensors that are read into one block of memory.
#[derive(Debug, Clone)]
pub struct TensorGroup {
    pub file: usize,
    pub memory_bytes: usize,
    /// The pieces, each with its range of the group's memory, in ascending order of these ranges.
    pub pieces: Vec<(ReadPiece, Range<usize>)>,
    pub places: Vec<TensorPlace>,
}

impl TensorGroup {
    /// Makes a group of consecutive wants, beginning with want `first`. Their `places` lie in `range` of a file.
    /// Earlier groups have `planned_bytes`.
    fn of_run(
        range: ByteRange,
        first: usize,
        places: &[ByteRange],
        reads: Reads,
        planned_bytes: &mut u64,
    ) -> Result<Self, OutOfMemory> {
        let base = range.offset - range.offset % PAGE_BYTES;
        let place_of = |offset: u64| (offset - base) as usize;
        let (mut offset, last) = match reads {
            _ if range.len == 0 => (range.offset, range.end()),
            Reads::Exact => (range.offset, range.end()),
            Reads::WholePages => (base, range.end().next_multiple_of(PAGE_BYTES)),
        };
        let mut pieces = Vec::new();
        while offset < last {
            let length = PIECES.iter().rfind(|&&(behind, _)| behind <= *planned_bytes);
            let piece_bytes = length.map_or(PIECE_BYTES, |&(_, bytes)| bytes);
            // Pieces end at multiples of their length in the file, so no two of them share a page or a request.
            let end = (offset - offset % piece_bytes + piece_bytes).min(last);
            let piece = (ReadPiece::Run { offset }, place_of(offset)..place_of(end));
            allocate::push(&mut pieces, piece, PLAN)?;
            *planned_bytes = planned_bytes.saturating_add(end - offset);
            offset = end;
        }
        let place = |(want, place): (usize, &ByteRange)| TensorPlace {
            want,
            offset: place_of(place.offset),
            len: place.len as usize,
        };
        let places = allocate::collected((first..).zip(places).map(place), PLAN)?;
        Ok(Self { file: range.file.index, memory_bytes: place_of(last), pieces, places })
    }

    /// Makes a group of one part of a tensor.
    fn of_part(want: usize, of: &Want, selection: &Selection) -> Result<Self, OutOfMemory> {
        let pieces = selection.cut(PIECE_BYTES).into_iter().map(|(selection, range)| {
            (ReadPiece::Part { data_offset: of.offset, selection }, range.start as usize..range.end as usize)
        });
        let mut pieces = allocate::collected(pieces, PLAN)?;
        // If an axis is reversed, the order in the file differs from the order in the result.
        pieces.sort_unstable_by_key(|(_, range)| range.start);
        let len = selection.result_bytes as usize;
        let places = vec![TensorPlace { want, offset: 0, len }];
        Ok(Self { file: of.file, memory_bytes: len, pieces, places })
    }
}

/// Plans the reading of wants in their order. Neighbouring whole tensors are joined if the gaps between them are
/// smaller than [`GAP_BYTES`].
pub fn groups(wants: &[Want], reads: Reads) -> Result<Vec<TensorGroup>, OutOfMemory> {
    let range_of = |want: &Want| {
        let (offset, len) = want.run()?;
        Some(ByteRange { file: FileId { set: 0, index: want.file }, offset, len })
    };
    let mut found = allocate::vec(wants.len(), PLAN)?;
    let (mut first, mut planned_bytes) = (0, 0);
    while let Some(want) = wants.get(first) {
        let Some(mut range) = range_of(want) else {
            found.extend(
                want.selection.as_ref().map(|part| TensorGroup::of_part(first, want, part)).transpose()?,
            );
            first += 1;
            continue;
        };
        let mut places = vec![range];
        // The first group is small, so that the first tensor waits for few neighbours.
        let max_bytes = if planned_bytes == 0 { 2 * REQUEST_BYTES } else { GROUP_BYTES };
        let rule = MergeRule { gap_bytes: GAP_BYTES, max_bytes };
        let is_whole = |want: &&Want| want.selection.is_none();
        while is_whole(&want)
            && let Some(next) = wants.get(first + places.len()).filter(is_whole).and_then(range_of)
            && next.offset >= range.end()
            && let Some(joined) = rule.join(range, next)
        {
            range = joined;
            allocate::push(&mut places, next, PLAN)?;
        }
        found.push(TensorGroup::of_run(range, first, &places, reads, &mut planned_bytes)?);
        first += places.len();
    }
    Ok(found)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use proptest::test_runner::RngSeed;

    use super::*;

    fn whole(file: usize, offset: u64, len: u64) -> Want {
        Want { file, offset, len, selection: None }
    }

    #[test]
    fn neighbours_share_a_group_and_large_tensors_have_their_own() {
        let wants =
            [whole(0, 100, 50), whole(0, 150, 50), whole(0, 300, 3 << 20), whole(1, 300, 10), whole(0, 0, 8)];
        let found = groups(&wants, Reads::Exact).expect("memory");
        let tensors: Vec<Vec<_>> =
            found.iter().map(|group| group.places.iter().map(|place| place.want).collect()).collect();
        assert_eq!(tensors, [vec![0, 1], vec![2], vec![3], vec![4]]);
        assert_eq!(found[0].places[1], TensorPlace { want: 1, offset: 150, len: 50 });
        assert_eq!(found[1].pieces.len(), 18, "cut where requests of the file begin");
    }

    #[test]
    fn pieces_grow() {
        let tensor_bytes = 3 * FIRST_BYTES / 2;
        let wants = [whole(0, 0, tensor_bytes), whole(0, tensor_bytes, tensor_bytes)];
        let lens = |group: &TensorGroup| group.pieces.iter().map(|(_, range)| range.len() as u64).collect();
        for reads in [Reads::Exact, Reads::WholePages] {
            let found: Vec<Vec<u64>> = groups(&wants, reads).expect("memory").iter().map(lens).collect();
            let (small, others) = found[0].split_at(8);
            let (middle, large) = others.split_at(60);
            assert!(small.iter().all(|&len| len == REQUEST_BYTES), "{small:?}");
            assert!(middle.iter().all(|&len| len == 2 * REQUEST_BYTES), "{middle:?}");
            assert!(large.iter().chain(&found[1]).all(|&len| len == PIECE_BYTES), "{large:?}");
        }
    }

    #[test]
    fn contiguous_parts_are_read_as_runs_and_stay_apart() {
        let part = |first, shape: &[u64], strides: &[i64]| {
            let selection = Selection::new(first, shape, strides, 1, 1 << 20).expect("valid");
            Want { file: 0, offset: 5000, len: 1 << 20, selection: Some(selection) }
        };
        let wants = [part(8, &[4, 100], &[100, 1]), part(408, &[100], &[1]), part(0, &[4, 50], &[100, 1])];
        let found = groups(&wants, Reads::WholePages).expect("memory");
        let (runs, parts) = found.split_at(2);
        for (group, offset) in runs.iter().zip([5008, 5408]) {
            assert!(matches!(
                group.pieces[..],
                [(ReadPiece::Run { offset: 4096 }, Range { start: 0, end: 4096 })]
            ));
            assert_eq!(group.places[0].offset, offset - 4096);
        }
        assert_eq!((runs[0].places[0].len, runs[1].places[0].len), (400, 100));
        assert!(matches!(parts[0].pieces[..], [(ReadPiece::Part { data_offset: 5000, .. }, _)]));
    }

    proptest! {
        #![proptest_config(ProptestConfig { rng_seed: RngSeed::Fixed(1), ..ProptestConfig::default() })]
        #[test]
        fn pieces_are_the_bytes_of_the_tensors_in_order(
            spans in prop::collection::vec((0..2usize, 0..9000u64, 0..3_000_000u64), 1..20),
            reads in prop_oneof![Just(Reads::Exact), Just(Reads::WholePages)],
        ) {
            let mut ends = [0; 2];
            let wants: Vec<_> = spans.iter().map(|&(file, gap, len)| {
                let offset = ends[file] + gap;
                ends[file] = offset + len;
                whole(file, offset, len)
            }).collect();
            let found = groups(&wants, reads).expect("memory");
            let order: Vec<_> = found.iter().flat_map(|group| group.places.iter().map(|place| place.want)).collect();
            prop_assert_eq!(order, (0..wants.len()).collect::<Vec<_>>());
            for group in &found {
                let mut at = None;
                for (piece, range) in &group.pieces {
                    let ReadPiece::Run { offset } = piece else { unreachable!("no selection") };
                    prop_assert!(range.len() as u64 <= PIECE_BYTES && !range.is_empty());
                    prop_assert_eq!(*offset % PAGE_BYTES, range.start as u64 % PAGE_BYTES);
                    prop_assert!(at.is_none_or(|at| at == (*offset, range.start)));
                    at = Some((offset + range.len() as u64, range.end));
                }
                if let (Some(first), Some((last, _))) = (group.pieces.first(), at) {
                    let ReadPiece::Run { offset } = first.0 else { unreachable!("no selection") };
                    let is_aligned = offset % PAGE_BYTES == 0 && last % PAGE_BYTES == 0;
                    prop_assert!(is_aligned || reads == Reads::Exact);
                    let (low, high) = (group.places[0], group.places[group.places.len() - 1]);
                    prop_assert!(offset <= wants[low.want].offset);
                    prop_assert!(last >= wants[high.want].offset + wants[high.want].len);
                }
                for place in &group.places {
                    let want = &wants[place.want];
                    prop_assert_eq!((want.file, want.len), (group.file, place.len as u64));
                    prop_assert!(place.offset + place.len <= group.memory_bytes);
                    prop_assert_eq!(want.offset % PAGE_BYTES, place.offset as u64 % PAGE_BYTES);
                }
                let wanted: u64 = group.places.iter().map(|place| place.len as u64).sum();
                let edges = 2 * PAGE_BYTES;
                prop_assert!(group.places.len() == 1 || group.memory_bytes as u64 <= GROUP_BYTES + edges);
                prop_assert!(group.memory_bytes as u64 - wanted <= edges + PAGE_BYTES * group.places.len() as u64);
            }
        }
    }
}

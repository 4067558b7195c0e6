//! From wanted tensors to groups and pieces, before any byte is read.

use std::ops::Range;

use crate::fetch::ranges::{ByteRange, FileId, MergeRule};
use crate::slicing::{GAP_BYTES, PIECE_BYTES, Selection};

/// Neighbours in a file share their memory up to this size: a tensor that the consumer keeps holds back no more.
pub const GROUP_BYTES: u64 = 1 << 20;

/// The kernel reads whole pages, and direct I/O nothing else. A group's memory lies to the page as its bytes lie in
/// the file.
pub const PAGE_BYTES: u64 = 4096;

/// A wanted tensor of a file, or a part of it.
#[derive(Debug, Clone)]
pub struct Want {
    pub file: usize,
    /// The tensor's bytes in the file.
    pub offset: u64,
    pub len: u64,
    /// `None` for the whole tensor.
    pub selection: Option<Selection>,
}

impl Want {
    /// Returns the part that is wanted; `None` for the whole tensor.
    pub fn part(&self) -> Option<&Selection> {
        self.selection.as_ref().filter(|part| !part.is_run() || part.result_bytes < self.len)
    }
}

/// What a thread reads in one go.
#[derive(Debug, Clone)]
pub enum ReadPiece {
    /// A run of the file's bytes.
    Run { offset: u64 },
    /// A part of a tensor that begins at `data_offset`.
    Part { data_offset: u64, selection: Selection },
}

/// Where a wanted tensor lies in the memory of its group.
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
    /// The pieces, each with its range of the memory; the ranges ascend.
    pub pieces: Vec<(ReadPiece, Range<usize>)>,
    pub places: Vec<TensorPlace>,
}

impl TensorGroup {
    /// Makes a group of the wanted tensors `wants`, which `range` of a file holds.
    fn of_run(range: ByteRange, wants: Range<usize>, all: &[Want]) -> Self {
        let file = range.file.index;
        let base = range.offset - range.offset % PAGE_BYTES;
        let place_of = |offset: u64| (offset - base) as usize;
        let mut pieces = Vec::with_capacity(range.len.div_ceil(PIECE_BYTES) as usize + 1);
        let mut offset = range.offset;
        while offset < range.end() {
            // Pieces end where the file's large blocks do: no two of them share a page or a request.
            let end = (offset - offset % PIECE_BYTES + PIECE_BYTES).min(range.end());
            pieces.push((ReadPiece::Run { offset }, place_of(offset)..place_of(end)));
            offset = end;
        }
        let places = wants.map(|want| {
            let Want { offset, len, .. } = all[want];
            TensorPlace { want, offset: place_of(offset), len: len as usize }
        });
        Self { file, memory_bytes: place_of(range.end()), pieces, places: places.collect() }
    }

    /// Makes a group of a part of a tensor.
    fn of_part(want: usize, of: &Want, selection: &Selection) -> Self {
        let pieces = selection.cut(PIECE_BYTES).into_iter().map(|(selection, range)| {
            (ReadPiece::Part { data_offset: of.offset, selection }, range.start as usize..range.end as usize)
        });
        let mut pieces: Vec<_> = pieces.collect();
        // Where an axis is reversed the order of the file is not that of the result.
        pieces.sort_by_key(|(_, range)| range.start);
        let len = selection.result_bytes as usize;
        Self { file: of.file, memory_bytes: len, pieces, places: vec![TensorPlace { want, offset: 0, len }] }
    }
}

/// Plans the reading of tensors, in their order. Neighbours are joined if gaps between them are below
/// [`GAP_BYTES`].
pub fn groups(wants: &[Want]) -> Vec<TensorGroup> {
    let rule = MergeRule { gap_bytes: GAP_BYTES, max_bytes: GROUP_BYTES };
    let range_of = |want: &Want| ByteRange {
        file: FileId { set: 0, index: want.file },
        offset: want.offset,
        len: want.len,
    };
    let mut found = Vec::new();
    let mut first = 0;
    while let Some(want) = wants.get(first) {
        if let Some(selection) = &want.selection {
            found.push(TensorGroup::of_part(first, want, selection));
            first += 1;
            continue;
        }
        let (mut range, mut end) = (range_of(want), first + 1);
        while let Some(next) = wants.get(end).filter(|next| next.selection.is_none()) {
            let follows = next.offset >= range.end();
            let Some(joined) = rule.join(range, range_of(next)).filter(|_| follows) else { break };
            (range, end) = (joined, end + 1);
        }
        found.push(TensorGroup::of_run(range, first..end, wants));
        first = end;
    }
    found
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn whole(file: usize, offset: u64, len: u64) -> Want {
        Want { file, offset, len, selection: None }
    }

    #[test]
    fn neighbours_share_a_lot_and_large_tensors_have_their_own() {
        let wants =
            [whole(0, 100, 50), whole(0, 150, 50), whole(0, 300, 3 << 20), whole(1, 300, 10), whole(0, 0, 8)];
        let found = groups(&wants);
        let tensors: Vec<Vec<_>> =
            found.iter().map(|group| group.places.iter().map(|place| place.want).collect()).collect();
        assert_eq!(tensors, [vec![0, 1], vec![2], vec![3], vec![4]]);
        assert_eq!(found[0].places[1], TensorPlace { want: 1, offset: 150, len: 50 });
        assert_eq!(found[1].pieces.len(), 4, "cut at the whole mebibytes of the file");
    }

    proptest! {
        #[test]
        fn pieces_are_the_bytes_of_the_tensors_in_order(
            spans in prop::collection::vec((0..2usize, 0..9000u64, 0..3_000_000u64), 1..20),
        ) {
            let mut ends = [0; 2];
            let wants: Vec<_> = spans.iter().map(|&(file, gap, len)| {
                let offset = ends[file] + gap;
                ends[file] = offset + len;
                whole(file, offset, len)
            }).collect();
            let found = groups(&wants);
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
                for place in &group.places {
                    let want = &wants[place.want];
                    prop_assert_eq!((want.file, want.len), (group.file, place.len as u64));
                    prop_assert!(place.offset + place.len <= group.memory_bytes);
                    prop_assert_eq!(want.offset % PAGE_BYTES, place.offset as u64 % PAGE_BYTES);
                }
                let wanted: u64 = group.places.iter().map(|place| place.len as u64).sum();
                prop_assert!(group.places.len() == 1 || group.memory_bytes as u64 <= GROUP_BYTES + PAGE_BYTES);
                prop_assert!(group.memory_bytes as u64 - wanted <= PAGE_BYTES * group.places.len() as u64);
            }
        }
    }
}

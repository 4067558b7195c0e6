//! The ranges of a file that a selection needs, in the order of the file.

use crate::fetch::ranges::{ByteRange, FileId, Merge, MergeRule, Ranged};

use super::selection::{Axis, Selection};

/// Smaller gaps are read and discarded. This is the size of a page: the page cache holds whole pages, so a smaller gap
/// costs no extra page, and each saved read is a system call or a request to a server. `benches/README.md` has the
/// measurement.
pub const GAP_BYTES: u64 = 4096;

/// Maximum length of an extent, and therefore of a thread's scratch memory. It is large enough for few requests to a
/// server, and small enough that an extent stays in the processor's cache until its elements are copied. Extents are
/// shorter if more threads can then read.
pub const PIECE_BYTES: u64 = 1 << 20;

/// A walk through the bytes of a selection.
#[derive(Debug, Clone)]
pub struct SlicePlan {
    pub selection: Selection,
    gap_bytes: u64,
    piece_bytes: u64,
    /// The axis along which blocks are cut. A block has up to `step` of its indices, with all inner axes.
    cut: usize,
    step: u64,
}

/// A range of the file that is read in one go, and the part of the result that it contains.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Block {
    /// Offset from the beginning of the tensor, in bytes.
    pub offset: u64,
    /// Length in bytes, including the gaps.
    pub len: u64,
    /// Number of indices along the cut axis.
    pub count: u64,
}

impl SlicePlan {
    pub fn new(selection: Selection) -> Self {
        Self::with_gap(selection, GAP_BYTES)
    }

    /// Creates a plan with another limit for gaps.
    pub fn with_gap(selection: Selection, gap_bytes: u64) -> Self {
        Self { selection, gap_bytes, piece_bytes: 0, cut: 0, step: 0 }.in_pieces_of(PIECE_BYTES)
    }

    /// Creates the same plan with extents of at most `piece_bytes`, which must not be 0.
    #[must_use]
    pub fn in_pieces_of(self, piece_bytes: u64) -> Self {
        let (cut, step) = cut_of(&self.selection.axes, self.gap_bytes, piece_bytes);
        Self { piece_bytes, cut, step, ..self }
    }

    /// Returns the number of blocks.
    pub fn block_count(&self) -> u64 {
        let Some(cut) = self.selection.axes.get(self.cut) else { return 0 };
        let outer = self.selection.axes[..self.cut].iter().map(|axis| axis.count).product::<u64>();
        outer * cut.count.div_ceil(self.step)
    }

    /// Returns the blocks, in the order of the file.
    pub fn blocks(&self) -> Blocks<'_> {
        let is_empty = self.selection.axes.is_empty();
        Blocks { plan: self, at: if is_empty { Vec::new() } else { vec![0; self.cut + 1] } }
    }

    /// Returns the ranges to read, in the order of the file.
    pub fn extents(&self) -> Merge<Blocks<'_>> {
        self.join(self.blocks())
    }

    /// Joins parts by the gap rule. They must come in the order of the file.
    pub(super) fn join<I: Iterator<Item: Ranged>>(&self, parts: I) -> Merge<I> {
        Merge::new(parts, MergeRule { gap_bytes: self.gap_bytes, max_bytes: self.piece_bytes })
    }

    /// Returns the axes of a block. The first one is the cut axis.
    pub(super) fn block_axes(&self) -> &[Axis] {
        &self.selection.axes[self.cut..]
    }

    pub(super) fn outer_axes(&self) -> &[Axis] {
        &self.selection.axes[..self.cut]
    }

    /// Returns whether the bytes of a block are in the order of the result, without gaps.
    pub(super) fn is_run(&self, block: &Block) -> bool {
        match self.block_axes() {
            [_bytes] => true,
            [_outer, _bytes] => block.count == 1,
            _ => false,
        }
    }
}

/// Returns the axis along which blocks are cut, and the number of its indices in a block.
fn cut_of(axes: &[Axis], gap_bytes: u64, piece_bytes: u64) -> (usize, u64) {
    let sparse = axes.iter().rposition(|axis| axis.gap() > 0 && axis.gap() >= gap_bytes);
    let dense = sparse.map_or(0, |axis| axis + 1);
    let Some(first) = axes.get(dense) else { return (0, 1) };
    if first.span_of(first.count) <= piece_bytes {
        return if dense == 0 { (0, first.count) } else { (dense - 1, 1) };
    }
    // One axis always fits, because the innermost axis consists of single bytes.
    let fits = axes[dense..].iter().position(|axis| axis.span <= piece_bytes).unwrap_or(0);
    let cut = dense + fits;
    (cut, (piece_bytes - axes[cut].span) / axes[cut].stride + 1)
}

/// Walks the outer axes like the digits of a number.
#[derive(Debug, Clone)]
pub struct Blocks<'p> {
    plan: &'p SlicePlan,
    /// The index along each axis, in the order of the file. Empty at the end.
    at: Vec<u64>,
}

impl Iterator for Blocks<'_> {
    type Item = Block;

    fn next(&mut self) -> Option<Block> {
        let (&last, _) = self.at.split_last()?;
        let axes = &self.plan.selection.axes;
        let cut = axes[self.plan.cut];
        let count = self.plan.step.min(cut.count - last);
        let steps = axes.iter().zip(&self.at).map(|(axis, &index)| axis.stride * index);
        let offset = self.plan.selection.start + steps.sum::<u64>();
        self.advance(count);
        Some(Block { offset, len: cut.span_of(count), count })
    }
}

impl Blocks<'_> {
    fn advance(&mut self, count: u64) {
        let mut step = count;
        for axis in (0..self.at.len()).rev() {
            self.at[axis] += step;
            if self.at[axis] < self.plan.selection.axes[axis].count {
                return;
            }
            self.at[axis] = 0;
            step = 1;
        }
        self.at.clear();
    }
}

impl Ranged for Block {
    fn range(&self) -> ByteRange {
        ByteRange { file: FileId::default(), offset: self.offset, len: self.len }
    }
}

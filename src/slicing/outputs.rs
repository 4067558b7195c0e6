//! The memory of the result, handed out block by block in the order of the file.

use crate::fetch::ranges::{ByteRange, Ranged};
use crate::os::memory::Uninit;

use super::plan::{Block, Blocks, SlicePlan};
use super::selection::Axis;

/// A block and the part of the result that it fills.
#[derive(Debug)]
pub(super) struct OutputPart<'a> {
    pub block: Block,
    pub memory: Uninit<'a>,
}

impl Ranged for OutputPart<'_> {
    fn range(&self) -> ByteRange {
        self.block.range()
    }
}

/// The blocks with their memory. The result is split along the outer axes: from the front if an axis has the file's
/// direction, and from the back if it is reversed. No two blocks share memory.
#[derive(Debug)]
pub(super) struct Outputs<'p, 'a> {
    plan: &'p SlicePlan,
    blocks: Blocks<'p>,
    /// Memory left on each axis up to the cut axis, within the current index of the next outer axis.
    rest: Vec<Uninit<'a>>,
}

impl<'p, 'a> Outputs<'p, 'a> {
    /// Creates the blocks of `out`, whose length must equal the result's.
    pub fn new(plan: &'p SlicePlan, out: Uninit<'a>) -> Self {
        let mut rest = vec![out];
        rest.extend(plan.outer_axes().iter().map(|_| Uninit::default()));
        Self { plan, blocks: plan.blocks(), rest }
    }

    /// Takes the memory of `count` indices of an axis.
    fn take(&mut self, axis: usize, count: u64) -> Uninit<'a> {
        let Axis { result_bytes, is_reversed, .. } = self.plan.selection.axes[axis];
        let bytes = (result_bytes * count) as usize;
        let rest = &mut self.rest[axis];
        if is_reversed { rest.take_back(bytes) } else { rest.take_front(bytes) }
    }
}

impl<'a> Iterator for Outputs<'_, 'a> {
    type Item = OutputPart<'a>;

    fn next(&mut self) -> Option<OutputPart<'a>> {
        let block = self.blocks.next()?;
        let cut = self.rest.len() - 1;
        // Refill the axes whose memory is used up, from the next index of the next outer axis.
        let used_up = self.rest.iter().rev().take_while(|rest| rest.is_empty()).count();
        for axis in cut + 1 - used_up..=cut {
            self.rest[axis] = self.take(axis - 1, 1);
        }
        Some(OutputPart { block, memory: self.take(cut, block.count) })
    }
}

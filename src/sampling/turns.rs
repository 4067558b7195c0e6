//! Turns of weighted members, in closed form: which member gets draw `n`, and how many draws it had before.
//!
//! A tree of two-way splits assigns the draws. After `n` draws of a node, its first child has had `n * share` of them,
//! rounded to the nearest whole number, and its second child the rest. One multiplication finds the child that gets a
//! draw. The inverse is one division. For example, draw 7 of three members:
//!
//! ```text
//! root, draw 7 ── share 1/2 ──┬── member 0 (weight 5)
//!                             └── node, draw 3 ── share 2/5 ──┬── member 2 (weight 2), its draw 1
//!                                                             └── member 1 (weight 3)
//! ```
//!
//! A member of weight `w` stays near its share `w * n / total`, because a split rounds by at most 1/2, and a child
//! inherits the error of its node in proportion to weights. With the weights `W` of the member and of all nodes between
//! it and the root, the errors add up to at most the sum of `w / W / 2`. The tree is a Huffman tree: it repeatedly
//! joins the two lightest nodes. Its `W` grow at least as fast as the Fibonacci numbers. The sum therefore stays below
//! (1 + 1 + 1/2 + 1/3 + 1/5 + ...) / 2 = 1.68, and below 1 for two or three members.
//!
//! Shares are multiples of 2^-64. That adds at most `n * 2^-65` at each split.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

/// Half of the unit of a share.
const HALF: u128 = 1 << 63;

/// The turns of some members. Nodes are numbered: first the members, then the splits, each after its children.
#[derive(Debug, Clone)]
pub(super) struct Turns {
    splits: Vec<Split>,
}

#[derive(Debug, Clone, Copy)]
struct Split {
    /// The share of the first child, in units of 2^-64; neither 0 nor 1.
    share: u64,
    children: [u32; 2],
}

impl Turns {
    /// Builds the tree. Weights must be at least 1, with a sum of at most [`super::mixture::MAX_WEIGHT_SUM`].
    pub fn new(weights: &[u64]) -> Self {
        let mut splits = Vec::with_capacity(weights.len().saturating_sub(1));
        // Equal weights are joined in the order of their numbers.
        let mut nodes: BinaryHeap<_> = weights.iter().copied().zip(0_u32..).map(Reverse).collect();
        let mut number = weights.len() as u32;
        while let (Some(Reverse((light, first))), Some(Reverse((heavy, second)))) = (nodes.pop(), nodes.pop())
        {
            let weight = light + heavy;
            let share = ((u128::from(light) << 64) + u128::from(weight / 2)) / u128::from(weight);
            splits.push(Split { share: share as u64, children: [first, second] });
            nodes.push(Reverse((weight, number)));
            number += 1;
        }
        Self { splits }
    }

    /// Returns the member that gets a draw, and the number of its earlier draws.
    #[inline]
    pub fn at(&self, mut draw: u64) -> (usize, u64) {
        let members = self.splits.len() + 1;
        let mut node = 2 * self.splits.len();
        while let Some(split) = node.checked_sub(members) {
            let Split { share, children } = self.splits[split];
            let product = u128::from(draw) * u128::from(share) + HALF;
            let first = (product >> 64) as u64;
            // The next draw adds one share.
            let is_first = (product as u64).checked_add(share).is_none();
            draw = if is_first { first } else { draw - first };
            node = children[usize::from(!is_first)] as usize;
        }
        (node, draw)
    }

    /// Returns each member's number of draws among the first `draws`.
    pub fn counts(&self, draws: u64) -> Vec<u64> {
        let members = self.splits.len() + 1;
        let mut counts = vec![draws; members + self.splits.len()];
        for (number, split) in self.splits.iter().enumerate().rev() {
            let [first, second] = split.children.map(|child| child as usize);
            let of_node = counts[members + number];
            counts[first] = ((u128::from(of_node) * u128::from(split.share) + HALF) >> 64) as u64;
            counts[second] = of_node - counts[first];
        }
        counts.truncate(members);
        counts
    }

    /// Returns the number of draws after which some member has had all of its own draws. Member `m` has `own[m]` draws,
    /// at least one. `None` if that takes more than 2^64.
    pub fn until_one_is_done(&self, own: &[u64]) -> Option<u64> {
        // For each node with a bound: the first draw of the node that is the last own draw of some member below it.
        let mut lasts: Vec<Option<u64>> = own.iter().map(|own| own.checked_sub(1)).collect();
        for split in &self.splits {
            let [first, second] = split.children.map(|child| lasts[child as usize]);
            let first = first.and_then(|draw| split.draw_of_first(draw));
            let second = second.and_then(|draw| split.draw_of_second(draw));
            lasts.push(first.into_iter().chain(second).min());
        }
        lasts.last().copied().flatten()?.checked_add(1)
    }
}

impl Split {
    /// Returns the node's draw that is draw number `draw` of its first child.
    fn draw_of_first(&self, draw: u64) -> Option<u64> {
        // The smallest n with (n + 1) * share + HALF >= (draw + 1) * 2^64.
        let wanted = (u128::from(draw) << 64) + HALF;
        u64::try_from(wanted.div_ceil(u128::from(self.share)) - 1).ok()
    }

    /// Returns the node's draw that is draw number `draw` of its second child.
    fn draw_of_second(&self, draw: u64) -> Option<u64> {
        // The smallest n with (n + 1) * (2^64 - share) - HALF > draw * 2^64.
        let share = u128::from(self.share.wrapping_neg());
        u64::try_from(((u128::from(draw) << 64) + HALF) / share).ok()
    }
}

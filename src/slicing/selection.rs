//! A checked selection, with the fewest possible axes.

use std::ops::Range;

use crate::error::{Error, Result};

/// An axis, in terms of the file and of the result.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Axis {
    pub count: u64,
    /// Bytes of the file between the starts of two indices.
    pub stride: u64,
    /// Bytes of the file from the first to the last byte of an index.
    pub span: u64,
    /// Bytes of an index in the result.
    pub result_bytes: u64,
    /// Whether the result has the indices in the opposite order.
    pub is_reversed: bool,
}

impl Axis {
    /// Returns the number of bytes of the file that `count` indices span, including the gaps between them.
    pub fn span_of(&self, count: u64) -> u64 {
        (count - 1) * self.stride + self.span
    }

    /// Returns the number of unused bytes between two indices.
    pub fn gap(&self) -> u64 {
        self.stride - self.span
    }
}

/// The result of indexing a contiguous tensor: elements in the order of the result.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Selection {
    /// The lowest selected byte.
    pub(super) start: u64,
    /// The axes, outermost first. The last axis consists of the bytes of a run. Empty for an empty result.
    pub(super) axes: Vec<Axis>,
    pub result_bytes: u64,
}

impl Selection {
    /// Creates a selection. `first` is the byte of the tensor at which the first element of the result begins, and
    /// `strides` are in bytes. The selection must lie in the tensor's `tensor_bytes` and select no byte twice.
    pub fn new(
        first: u64,
        shape: &[u64],
        strides: &[i64],
        item_bytes: u64,
        tensor_bytes: u64,
    ) -> Result<Self> {
        if shape.len() != strides.len() || item_bytes == 0 {
            return Err(Error::argument(format!(
                "a selection of {} lengths, {} strides and elements of {item_bytes} bytes",
                shape.len(),
                strides.len()
            )));
        }
        if shape.contains(&0) {
            return Ok(Self { start: 0, axes: Vec::new(), result_bytes: 0 });
        }
        let outside = || {
            Error::argument(format!(
                "a selection from byte {first} on, of shape {shape:?} and strides {strides:?} in bytes, does \
                 not lie inside a tensor of {tensor_bytes} bytes"
            ))
        };
        let bytes = Axis { count: item_bytes, stride: 1, span: 1, result_bytes: 1, is_reversed: false };
        let (mut start, mut axes, mut result_bytes) = (first, vec![bytes], item_bytes);
        for (&count, &stride) in shape.iter().zip(strides).rev().filter(|&(&count, _)| count > 1) {
            let distance = stride.unsigned_abs();
            let reach = distance.checked_mul(count - 1).ok_or_else(outside)?;
            let is_reversed = stride < 0;
            if is_reversed {
                start = start.checked_sub(reach).ok_or_else(outside)?;
            }
            let inner = *axes.last().unwrap_or(&bytes);
            let span = inner.span_of(inner.count);
            if distance < span {
                return Err(Error::argument(format!(
                    "a stride of {stride} bytes over parts of {span}: indexing makes no such strides"
                )));
            }
            span.checked_add(reach).filter(|&end| end <= tensor_bytes).ok_or_else(outside)?;
            let outer = Axis { count, stride: distance, span, result_bytes, is_reversed };
            // The check above ensures that the result fits into the tensor, so no product overflows.
            result_bytes *= count;
            match axes.last_mut() {
                Some(inner) if continues(&outer, inner) => inner.count *= count,
                _ => axes.push(outer),
            }
        }
        axes.reverse();
        let end = axes[0].span_of(axes[0].count).checked_add(start);
        end.filter(|&end| end <= tensor_bytes).ok_or_else(outside)?;
        Ok(Self { start, axes, result_bytes })
    }

    /// Cuts the selection into selections that each span at most `max_bytes` of the file, if its innermost runs allow
    /// it. Each comes with its range of the result, in bytes. They are in the order of the file.
    pub fn cut(&self, max_bytes: u64) -> Vec<(Self, Range<u64>)> {
        let mut parts = Vec::new();
        cut(self.start, &self.axes, 0, max_bytes.max(1), &mut parts);
        parts
    }

    /// Returns the lowest selected byte, and the number of bytes from it to the highest one.
    pub fn extent(&self) -> (u64, u64) {
        (self.start, self.axes.first().map_or(0, |outer| outer.span_of(outer.count)))
    }

    /// Returns whether the selection is a single run of bytes in order. An empty selection is a run.
    pub fn is_run(&self) -> bool {
        self.axes.len() <= 1
    }

    /// Returns the selected bytes of the tensor, if they are a single nonempty run.
    pub fn run(&self) -> Option<Range<u64>> {
        (self.is_run() && self.result_bytes > 0).then(|| self.start..self.start + self.result_bytes)
    }
}

/// Cuts along the outermost axis whose indices are small enough. `place` is the first byte of the result.
fn cut(start: u64, axes: &[Axis], place: u64, max_bytes: u64, parts: &mut Vec<(Selection, Range<u64>)>) {
    let Some((outer, inner)) = axes.split_first() else { return };
    let is_large = outer.span > max_bytes;
    let step = if is_large { 1 } else { (max_bytes - outer.span) / outer.stride.max(1) + 1 };
    for first in (0..outer.count).step_by(step as usize) {
        let count = step.min(outer.count - first);
        let index = if outer.is_reversed { outer.count - first - count } else { first };
        let (start, place) = (start + first * outer.stride, place + index * outer.result_bytes);
        if is_large {
            cut(start, inner, place, max_bytes, parts);
            continue;
        }
        // An axis of length 1 can be dropped, unless it is the innermost one.
        let kept = if count == 1 && !inner.is_empty() {
            inner.to_vec()
        } else {
            [&[Axis { count, ..*outer }], inner].concat()
        };
        let result_bytes = count * outer.result_bytes;
        parts.push((Selection { start, axes: kept, result_bytes }, place..place + result_bytes));
    }
}

/// Returns whether two neighbouring axes, in the file and in the result, are spaced like a single axis.
fn continues(outer: &Axis, inner: &Axis) -> bool {
    let is_same_way = outer.is_reversed == inner.is_reversed;
    is_same_way && inner.stride.checked_mul(inner.count) == Some(outer.stride)
}

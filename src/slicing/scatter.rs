//! Copies the elements of a block with gaps to their places in the result.

use crate::os::memory::{Uninit, UninitArray};

use super::selection::Axis;

/// Copies `count` indices of the first axis, with all inner axes. `source` is as long as their span in the file, and
/// `target` is as long as their part of the result.
pub(super) fn scatter(axes: &[Axis], count: u64, source: &[u8], mut target: Uninit<'_>) {
    match axes {
        [] => {}
        [_bytes] => target.copy_from_slice(source),
        [outer, bytes] => strided(outer, bytes.count as usize, source, target),
        [outer, inner, ..] => {
            let (stride, span) = (outer.stride as usize, outer.span as usize);
            let outputs = target.chunks_exact(outer.result_bytes as usize);
            for (index, output) in outputs.enumerate() {
                let index = if outer.is_reversed { count as usize - 1 - index } else { index };
                let start = index * stride;
                scatter(&axes[1..], inner.count, &source[start..start + span], output);
            }
        }
    }
}

/// Copies runs of `run` bytes that are `outer.stride` apart.
fn strided(outer: &Axis, run: usize, source: &[u8], target: Uninit<'_>) {
    let stride = outer.stride as usize;
    match run {
        1 => items::<1>(outer.is_reversed, stride, source, target),
        2 => items::<2>(outer.is_reversed, stride, source, target),
        4 => items::<4>(outer.is_reversed, stride, source, target),
        8 => items::<8>(outer.is_reversed, stride, source, target),
        16 => items::<16>(outer.is_reversed, stride, source, target),
        _ if outer.is_reversed => {
            for (mut output, chunk) in target.chunks_exact(run).zip(source.rchunks(stride)) {
                output.copy_from_slice(&chunk[chunk.len() - run..]);
            }
        }
        _ => {
            for (mut output, chunk) in target.chunks_exact(run).zip(source.chunks(stride)) {
                output.copy_from_slice(&chunk[..run]);
            }
        }
    }
}

/// Copies runs whose length is known to the compiler, so that each run is a load and a store.
fn items<const RUN: usize>(is_reversed: bool, stride: usize, source: &[u8], target: Uninit<'_>) {
    if !stride.is_multiple_of(RUN) {
        // For example, pairs of elements with a distance of three elements.
        let outputs = target.arrays::<RUN>();
        let places = (0..outputs.len()).map(|index| index * stride);
        let copy = |(output, place): (UninitArray<'_, RUN>, usize)| {
            if let Some(element) = source[place..].first_chunk() {
                output.write(*element);
            }
        };
        if is_reversed {
            outputs.rev().zip(places).for_each(copy);
        } else {
            outputs.zip(places).for_each(copy);
        }
        return;
    }
    let (elements, _) = source.as_chunks::<RUN>();
    let step = stride / RUN;
    match (is_reversed, step) {
        (true, 1) => {
            target.arrays().zip(elements.iter().rev()).for_each(|(output, element)| output.write(*element));
        }
        (true, _) => {
            let wanted = elements.iter().rev().step_by(step);
            target.arrays().zip(wanted).for_each(|(output, element)| output.write(*element));
        }
        // The most common step. With a known step the compiler shuffles whole vectors.
        (false, 2) => {
            let (pairs, rest) = elements.as_chunks::<2>();
            let (outputs, last) = target.split_at(pairs.len() * RUN);
            outputs.arrays().zip(pairs).for_each(|(output, [element, _])| output.write(*element));
            last.arrays().zip(rest).for_each(|(output, element)| output.write(*element));
        }
        (false, _) => {
            let wanted = elements.iter().step_by(step);
            target.arrays().zip(wanted).for_each(|(output, element)| output.write(*element));
        }
    }
}

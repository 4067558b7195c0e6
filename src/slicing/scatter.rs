//! Elements from a block, gaps and all, to their places in the result.

use std::mem::MaybeUninit;

use super::selection::Axis;

type Bytes = [MaybeUninit<u8>];

/// Copies `count` indices of the first axis, with all of the others. `source` is as long as their span,
/// `target` as their room.
pub(super) fn scatter(axes: &[Axis], count: u64, source: &Bytes, target: &mut Bytes) {
    match axes {
        [] => {}
        [_bytes] => target.copy_from_slice(source),
        [outer, bytes] => strided(outer, bytes.count as usize, source, target),
        [outer, inner, ..] => {
            let (stride, span) = (outer.stride as usize, outer.span as usize);
            let rooms = target.chunks_exact_mut(outer.room as usize);
            for (index, room) in rooms.enumerate() {
                let index = if outer.is_reversed { count as usize - 1 - index } else { index };
                let start = index * stride;
                scatter(&axes[1..], inner.count, &source[start..start + span], room);
            }
        }
    }
}

/// Runs of `run` bytes, `outer.stride` apart.
fn strided(outer: &Axis, run: usize, source: &Bytes, target: &mut Bytes) {
    let stride = outer.stride as usize;
    match run {
        1 => items::<1>(outer.is_reversed, stride, source, target),
        2 => items::<2>(outer.is_reversed, stride, source, target),
        4 => items::<4>(outer.is_reversed, stride, source, target),
        8 => items::<8>(outer.is_reversed, stride, source, target),
        16 => items::<16>(outer.is_reversed, stride, source, target),
        _ if outer.is_reversed => {
            for (room, chunk) in target.chunks_exact_mut(run).zip(source.rchunks(stride)) {
                room.copy_from_slice(&chunk[chunk.len() - run..]);
            }
        }
        _ => {
            for (room, chunk) in target.chunks_exact_mut(run).zip(source.chunks(stride)) {
                room.copy_from_slice(&chunk[..run]);
            }
        }
    }
}

/// Runs of a length that the compiler knows, so that each is a load and a store.
fn items<const RUN: usize>(is_reversed: bool, stride: usize, source: &Bytes, target: &mut Bytes) {
    let (rooms, _) = target.as_chunks_mut::<RUN>();
    if !stride.is_multiple_of(RUN) {
        // Pairs of elements, say, that are three elements apart.
        let places = (0..rooms.len()).map(|index| index * stride);
        let copy = |(room, place): (&mut [MaybeUninit<u8>; RUN], usize)| {
            room.copy_from_slice(&source[place..place + RUN]);
        };
        if is_reversed {
            rooms.iter_mut().rev().zip(places).for_each(copy);
        } else {
            rooms.iter_mut().zip(places).for_each(copy);
        }
        return;
    }
    let (elements, _) = source.as_chunks::<RUN>();
    let step = stride / RUN;
    match (is_reversed, step) {
        (true, 1) => rooms.iter_mut().zip(elements.iter().rev()).for_each(|(room, element)| *room = *element),
        (true, _) => {
            let wanted = elements.iter().rev().step_by(step);
            rooms.iter_mut().zip(wanted).for_each(|(room, element)| *room = *element);
        }
        // Most common, and with a step that is known the compiler shuffles whole vectors.
        (false, 2) => {
            let (pairs, rest) = elements.as_chunks::<2>();
            let (rooms, last) = rooms.split_at_mut(pairs.len());
            rooms.iter_mut().zip(pairs).for_each(|(room, [element, _])| *room = *element);
            last.iter_mut().zip(rest).for_each(|(room, element)| *room = *element);
        }
        (false, _) => {
            let wanted = elements.iter().step_by(step);
            rooms.iter_mut().zip(wanted).for_each(|(room, element)| *room = *element);
        }
    }
}

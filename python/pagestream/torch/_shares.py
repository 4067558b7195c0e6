"""The bytes of a checkpoint that each rank reads, and the ranks that it sends them to. Arithmetic only.

Each rank wants boxes of tensors. A tensor is cut into pieces such that each byte that anybody wants lies in
one of them. One rank reads a piece, and sends to each other rank what that one wants of it.

```text
  boxes that ranks want ──> slabs along the first dimension ──> pieces of at most PIECE_BYTES ──> rounds
                            of one rank: it reads its own       each to the rank, of those that   until a rank
                            of several: read once, whole rows   want it, that reads least         has enough
```
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING, TypeAlias

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

# Start and end along each dimension.
Box: TypeAlias = tuple[tuple[int, int], ...]

PIECE_BYTES = 8 << 20
# Parts of rows that are at least as long come from storage as fast as whole rows.
LONG_RUN_BYTES = 64 << 10
# Whole rows are read for several ranks as long as they are at most this many times what those want.
MOST_WASTE = 1.2


@dataclass(frozen=True, slots=True)
class Request:
    """A box of a tensor that a rank wants."""

    rank: int
    box: Box


@dataclass(frozen=True, slots=True)
class SharedTensor:
    """A tensor that is not empty, as bytes: the last dimension counts them.

    Attributes:
        shape: The shape in bytes.
        requests: What ranks want of it.
    """

    shape: tuple[int, ...]
    requests: tuple[Request, ...]


@dataclass(frozen=True, slots=True)
class Piece:
    """A box that is read once.

    Attributes:
        tensor: The number of the tensor.
        reader: The rank that reads it.
        box: What it reads.
        parts: Numbers of requests of the tensor, each with what it gets of the piece.
    """

    tensor: int
    reader: int
    box: Box
    parts: tuple[tuple[int, Box], ...]


def volume(box: Box) -> int:
    """Returns how many bytes a box has."""
    return math.prod(end - start for start, end in box)


def within(box: Box, outer: Box) -> tuple[slice, ...]:
    """Returns the place of a box in one that has all of it, as an index."""
    return tuple(
        slice(start - first, end - first) for (start, end), (first, _) in zip(box, outer, strict=True)
    )


def shared(tensors: Sequence[SharedTensor], ranks: int) -> list[Piece]:
    """Returns the pieces that the ranks read, in the order of the tensors."""
    pieces: list[Piece] = []
    load_bytes = [0] * ranks
    for number, tensor in enumerate(tensors):
        for box, members in _slabs(tensor):
            for cut in _cut(box):
                parts = tuple(
                    (member, part)
                    for member in members
                    if (part := _common(tensor.requests[member].box, cut)) is not None
                )
                takers = {tensor.requests[member].rank for member, _ in parts}
                if not takers:
                    continue
                reader = min(takers, key=lambda rank: (load_bytes[rank], rank))
                load_bytes[reader] += volume(cut)
                pieces.append(Piece(number, reader, cut, parts))
    return pieces


def _slabs(tensor: SharedTensor) -> Iterator[tuple[Box, list[int]]]:
    """Yields boxes that are to be read once, and the numbers of the requests that want some of each."""
    requests = tensor.requests
    bounds = sorted({bound for request in requests for bound in request.box[0]})
    for first, last in pairwise(bounds):
        members = [
            number
            for number, request in enumerate(requests)
            if request.box[0][0] <= first and last <= request.box[0][1]
        ]
        by_rest: dict[Box, list[int]] = {}
        for number in members:
            by_rest.setdefault(requests[number].box[1:], []).append(number)
        if _is_read_apart(tensor.shape, (first, last), list(by_rest)):
            for rest, wanting in by_rest.items():
                yield ((first, last), *rest), wanting
        elif members:
            yield ((first, last), *_hull(by_rest)), members


def _is_read_apart(shape: tuple[int, ...], rows: tuple[int, int], rests: list[Box]) -> bool:
    """Returns whether parts of the same rows are better read one by one than with all that lies between."""
    if len(rests) <= 1:
        return True
    boxes = [(rows, *rest) for rest in rests]
    wanted_bytes = sum(map(volume, boxes))
    hull_bytes = volume((rows, *_hull(rests)))
    if hull_bytes > MOST_WASTE * wanted_bytes:
        return True
    overlap = any(_common(box, other) for number, box in enumerate(boxes) for other in boxes[:number])
    return not overlap and min(_run_bytes(shape, box) for box in boxes) >= LONG_RUN_BYTES


def _run_bytes(shape: tuple[int, ...], box: Box) -> int:
    """Returns how many bytes of a box lie one after another in the file."""
    run = 1
    for length, (start, end) in zip(reversed(shape), reversed(box), strict=True):
        run *= end - start
        if end - start < length:
            break
    return run


def _hull(boxes: Iterable[Box]) -> Box:
    """Returns the smallest box that has all of some boxes."""
    dimensions = zip(*boxes, strict=True)
    return tuple(
        (min(start for start, _ in them), max(end for _, end in them)) for them in map(list, dimensions)
    )


def _common(box: Box, other: Box) -> Box | None:
    """Returns what two boxes have in common."""
    found = tuple(
        (max(start, first), min(end, last)) for (start, end), (first, last) in zip(box, other, strict=True)
    )
    return found if all(start < end for start, end in found) else None


def _cut(box: Box) -> Iterator[Box]:
    """Yields parts of a box, in order, of at most `PIECE_BYTES`, or of one byte more than nothing fits."""
    axis = next((axis for axis, (start, end) in enumerate(box) if end - start > 1), None)
    if axis is None or volume(box) <= PIECE_BYTES:
        yield box
        return
    start, end = box[axis]
    step = max(1, PIECE_BYTES * (end - start) // volume(box))
    for first in range(start, end, step):
        yield from _cut((*box[:axis], (first, min(first + step, end)), *box[axis + 1 :]))


def rounds(pieces: list[Piece], tensors: Sequence[SharedTensor], most_bytes: int) -> Iterator[list[Piece]]:
    """Yields pieces that are read and sent before the next ones: as many as take no rank over `most_bytes`.

    What a rank has at a time is what it reads, sends and gets.
    """
    lot: list[Piece] = []
    held_bytes: dict[int, int] = {}
    for piece in pieces:
        added = {piece.reader: volume(piece.box)}
        for number, part in piece.parts:
            rank = tensors[piece.tensor].requests[number].rank
            for end in {rank, piece.reader} if rank != piece.reader else ():
                added[end] = added.get(end, 0) + volume(part)
        if lot and any(held_bytes.get(rank, 0) + bytes_ > most_bytes for rank, bytes_ in added.items()):
            yield lot
            lot, held_bytes = [], {}
        lot.append(piece)
        for rank, bytes_ in added.items():
            held_bytes[rank] = held_bytes.get(rank, 0) + bytes_
    if lot:
        yield lot

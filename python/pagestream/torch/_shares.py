"""Decides which bytes of a checkpoint each rank reads, and where it sends them. Arithmetic only.

Each rank requests boxes of tensors, possibly with steps. A tensor is cut into pieces such that each requested
byte lies in exactly one piece. One rank reads a piece, and sends each other rank its part of it. A piece that
only one rank requests is read outside of the rounds' exchange, and other ranks do not count it.

```text
  requested boxes ───────> slabs along the first dimension ──> pieces of at most PIECE_BYTES ──> rounds
  (dimensions with steps   nearby boxes in a slab are          each goes to the requesting       until a rank
  split into two)          read together                       rank with the fewest bytes        has enough
```

If many ranks request the same bytes, the pieces are smaller: the reading rank needs a copy for each other
rank, and all ranks should read in a round.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING, TypeAlias

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    _Integers: TypeAlias = np.ndarray[tuple[int], np.dtype[np.int64]]

# The places along each dimension, in ascending order.
Box: TypeAlias = tuple[range, ...]

PIECE_BYTES, SMALL_PIECE_BYTES = 8 << 20, 256 << 10
# Parts of rows with at least this length are read from storage as fast as whole rows.
LONG_RUN_BYTES = 64 << 10
# Whole rows are read for several ranks if this takes at most this many times the bytes of separate reads.
MOST_WASTE = 1.2
_PAGE_BYTES = 4096


@dataclass(frozen=True, slots=True)
class Request:
    """A box of a tensor that a rank requests."""

    rank: int
    box: Box


@dataclass(frozen=True, slots=True)
class SharedTensor:
    """A nonempty tensor as bytes. Its last dimension counts bytes.

    Attributes:
        shape: The shape in bytes.
        requests: The requests of all ranks.
    """

    shape: tuple[int, ...]
    requests: tuple[Request, ...]


@dataclass(frozen=True, slots=True, eq=False)
class Cut:
    """A box that is read once, from one tensor or from several similar ones.

    Attributes:
        box: The box.
        nbytes: Size of the box.
        parts_of: For each rank, the numbers of its requests, each with its part of the box.
        takers: The ranks that request a part of the box.
        wanted_bytes: For each rank, the size of its parts.
        sent_bytes: The size of all parts together.
    """

    box: Box
    nbytes: int
    parts_of: dict[int, list[tuple[int, Box]]]
    takers: _Integers
    wanted_bytes: _Integers
    sent_bytes: int


@dataclass(frozen=True, slots=True)
class Piece:
    """A part of a tensor that a rank reads for itself and for other ranks.

    Attributes:
        tensor: The number of the tensor.
        reader: The rank that reads the piece.
        cut: The box that it reads.
    """

    tensor: int
    reader: int
    cut: Cut

    @property
    def is_shared(self) -> bool:
        """Whether several ranks request parts of this piece."""
        return len(self.cut.parts_of) > 1


@dataclass(frozen=True, slots=True)
class Round:
    """Pieces that are read together, before the next round.

    Attributes:
        shared: Pieces for several ranks, the same on all ranks. They are exchanged first.
        alone: Pieces for this rank only.
    """

    shared: list[Piece]
    alone: list[Piece]


@dataclass(slots=True)
class _JointRead:
    """Boxes that are read together.

    Attributes:
        box: The box that is read.
        boxes: The boxes that it serves.
        least_bytes: The bytes that storage delivers if only requested bytes are read.
    """

    box: Box
    boxes: list[Box]
    least_bytes: int


def volume(box: Box) -> int:
    """Returns the size of a box in bytes."""
    return math.prod(map(len, box))


def within(box: Box, outer: Box) -> tuple[slice, ...]:
    """Returns the index of a nonempty box within a box that contains it."""
    found = []
    for places, outer_places in zip(box, outer, strict=True):
        first, last = outer_places.index(places[0]), outer_places.index(places[-1])
        step = (last - first) // (len(places) - 1) if len(places) > 1 else 1
        found.append(slice(first, last + 1, step))
    return tuple(found)


def shared(
    kinds: Sequence[SharedTensor], kind_of: Iterable[int], rank: int, ranks: int, round_bytes: int
) -> list[Piece]:
    """Returns the pieces for several ranks, and the pieces only for `rank`, in the order of the tensors.

    Args:
        kinds: Tensors with different requests. Most layers of a model are of the same kind.
        kind_of: For each tensor, the number of its kind.
        rank: The rank.
        ranks: The number of ranks.
        round_bytes: Limit on the memory of a rank in a round. Within it, all ranks should be able to read,
            send and receive.
    """
    divided: list[tuple[_Integers, list[Cut]]] = []
    for kind in kinds:
        cuts = list(_cuts(kind, ranks, round_bytes))
        alone_bytes = np.zeros(ranks, np.int64)
        for cut in cuts:
            if len(cut.takers) == 1:
                alone_bytes[cut.takers] += cut.nbytes
        divided.append((alone_bytes, [cut for cut in cuts if len(cut.takers) > 1 or rank in cut.parts_of]))
    pieces: list[Piece] = []
    load_bytes = np.zeros(ranks, np.int64)
    for number, kind_number in enumerate(kind_of):
        alone_bytes, cuts = divided[kind_number]
        load_bytes += alone_bytes
        for cut in cuts:
            if len(cut.takers) == 1:
                reader = rank
            else:
                reader = int(cut.takers[load_bytes[cut.takers].argmin()])
                load_bytes[reader] += cut.nbytes
            pieces.append(Piece(number, reader, cut))
    return pieces


def split(tensor: SharedTensor) -> SharedTensor:
    """Returns a tensor in which each dimension with a step on every rank is split into two.

    The first of the two dimensions counts steps, and the second one counts places within a step. The parts
    that several ranks request of each step therefore form one box. The step divides all requested steps, and
    the length.
    """
    shape: list[int] = []
    boxes: list[list[range]] = [[] for _ in tensor.requests]
    for axis, length in enumerate(tensor.shape):
        of_axis = [request.box[axis] for request in tensor.requests]
        steps = {places.step for places in of_axis if len(places) > 1} or {1}
        step = math.gcd(length, *steps)
        if step == 1:
            shape.append(length)
            for box, places in zip(boxes, of_axis, strict=True):
                box.append(places)
            continue
        shape += (length // step, step)
        for box, places in zip(boxes, of_axis, strict=True):
            first, place = divmod(places.start, step)
            steps_between = max(1, places.step // step)
            box.extend((range(first, (places.stop - 1) // step + 1, steps_between), range(place, place + 1)))
    requests = (
        Request(request.rank, tuple(box)) for request, box in zip(tensor.requests, boxes, strict=True)
    )
    return SharedTensor(tuple(shape), tuple(requests))


def _cuts(tensor: SharedTensor, ranks: int, round_bytes: int) -> Iterator[Cut]:
    """Yields the parts of a tensor that are read once."""
    requests = tensor.requests
    for slab, members in _slabs(tensor):
        for box in _divided(slab, _most_bytes(slab, [requests[member] for member in members], round_bytes)):
            common = {wanted: _common(wanted, box) for wanted in {requests[member].box for member in members}}
            parts_of: dict[int, list[tuple[int, Box]]] = {}
            wanted_bytes = np.zeros(ranks, np.int64)
            for member in members:
                request = requests[member]
                if (part := common[request.box]) is not None:
                    parts_of.setdefault(request.rank, []).append((member, part))
                    wanted_bytes[request.rank] += volume(part)
            if parts_of:
                takers = np.array(sorted(parts_of), np.int64)
                yield Cut(box, volume(box), parts_of, takers, wanted_bytes, int(wanted_bytes.sum()))


def _most_bytes(slab: Box, requests: list[Request], round_bytes: int) -> int:
    """Returns the maximum size of a slab's pieces."""
    if len({request.rank for request in requests}) == 1:
        return PIECE_BYTES
    slab_bytes = volume(slab)
    sent_bytes = sum(volume(part) for request in requests if (part := _common(request.box, slab)))
    # Each rank reads a piece, sends parts of it, and receives as many bytes from other ranks.
    return min(PIECE_BYTES, max(SMALL_PIECE_BYTES, round_bytes * slab_bytes // (slab_bytes + 2 * sent_bytes)))


def _slabs(tensor: SharedTensor) -> Iterator[tuple[Box, list[int]]]:
    """Yields the boxes to read once, each with the numbers of the requests that it serves."""
    requests = tensor.requests
    rows_of = [_whole_steps(request.box[0]) for request in requests]
    bounds = sorted({bound for rows in rows_of for bound in (rows.start, rows.stop)})
    begun: dict[int, list[int]] = {}
    for number, rows in enumerate(rows_of):
        begun.setdefault(rows.start, []).append(number)
    members: list[int] = []
    for first, last in pairwise(bounds):
        members = sorted(
            number for number in (*members, *begun.get(first, ())) if rows_of[number].stop > first
        )
        by_box: dict[Box, list[int]] = {}
        for number in members:
            rows, *rest = requests[number].box
            if volume(box := (_bounded(rows, range(first, last)), *rest)):
                by_box.setdefault(box, []).append(number)
        for reading in _joined(tensor.shape, by_box):
            yield reading.box, sorted(number for box in reading.boxes for number in by_box[box])


def _whole_steps(places: range) -> range:
    """Returns a range around places with a step. It is the same for all places that begin within one step."""
    step = places.step
    return range(places.start // step * step, -(-places.stop // step) * step)


def _joined(shape: tuple[int, ...], boxes: Iterable[Box]) -> list[_JointRead]:
    """Decides for nonempty boxes whether each is read with the previous one or separately.

    The boxes are sorted by their first places, so that nearby boxes are neighbours. If they overlap so much
    that a joint read needs fewer bytes, they are read together.
    """
    found: list[_JointRead] = []
    for box in sorted(boxes, key=lambda box: [places.start for places in box]):
        own = _JointRead(box, [box], _read_bytes(shape, box))
        if not found or not _join(shape, found[-1], own):
            found.append(own)
    if found and volume(hull := _hull(each.box for each in found)) < sum(volume(each.box) for each in found):
        found = [_JointRead(hull, [box for each in found for box in each.boxes], _read_bytes(shape, hull))]
    return found


def _join(shape: tuple[int, ...], reading: _JointRead, other: _JointRead) -> bool:
    """Adds a box to a joint read if this takes few additional bytes, and returns whether it did.

    Disjoint boxes with long runs are read as fast separately.
    """
    hull = _hull((reading.box, other.box))
    hull_bytes, apart_bytes = _read_bytes(shape, hull), reading.least_bytes + other.least_bytes
    is_long = min(_run_bytes(shape, each.box) for each in (reading, other)) >= LONG_RUN_BYTES
    if hull_bytes > MOST_WASTE * apart_bytes or (is_long and _are_apart(reading.box, other.box)):
        return False
    reading.box, reading.least_bytes = hull, min(hull_bytes, apart_bytes)
    reading.boxes += other.boxes
    return True


def _read_bytes(shape: tuple[int, ...], box: Box) -> int:
    """Returns the number of bytes that storage delivers for a box: whole pages, and gaps that are read.

    A gap is read if runs recur within `LONG_RUN_BYTES`, as `slicing` does if requests take milliseconds.
    """
    runs, run_bytes, extent_bytes = 1, 1, 1
    for length, places in zip(reversed(shape), reversed(box), strict=True):
        from_start_to_start = extent_bytes * places.step
        if runs == 1 and from_start_to_start <= max(LONG_RUN_BYTES, run_bytes):
            run_bytes += (len(places) - 1) * from_start_to_start
        else:
            runs *= len(places)
        extent_bytes *= length
    return runs * (run_bytes + _PAGE_BYTES)


def _run_bytes(shape: tuple[int, ...], box: Box) -> int:
    """Returns the number of contiguous bytes in each run of a box in the file."""
    run = 1
    for length, places in zip(reversed(shape), reversed(box), strict=True):
        if places.step > 1:
            break
        run *= len(places)
        if len(places) < length:
            break
    return run


def _hull(boxes: Iterable[Box]) -> Box:
    """Returns the smallest box without steps that contains all of some nonempty boxes."""
    dimensions = zip(*boxes, strict=True)
    return tuple(
        range(min(places[0] for places in them), max(places[-1] for places in them) + 1)
        for them in map(list, dimensions)
    )


def _are_apart(box: Box, other: Box) -> bool:
    """Returns whether two nonempty boxes are disjoint."""
    return any(
        places[0] > others[-1]
        or others[0] > places[-1]
        or (places.start - others.start) % math.gcd(places.step, others.step)
        for places, others in zip(box, other, strict=True)
    )


def _common(box: Box, other: Box) -> Box | None:
    """Returns the intersection of two boxes. The other box has no steps, or is a part of the first one."""
    found = tuple(map(_bounded, box, other))
    return found if all(found) else None


def _bounded(places: range, other: range) -> range:
    """Returns the places that lie within the bounds of another range."""
    first = max(0, -((places.start - other.start) // places.step))
    rest = places[first:]
    return range(rest.start, min(rest.stop, other.stop), rest.step)


def _divided(box: Box, most_bytes: int) -> Iterator[Box]:
    """Yields parts of a box, in order, each with at most `most_bytes` bytes, but with at least one byte."""
    axis = next((axis for axis, places in enumerate(box) if len(places) > 1), None)
    if axis is None or volume(box) <= most_bytes:
        yield box
        return
    count = max(1, most_bytes * len(box[axis]) // volume(box))
    for first in range(0, len(box[axis]), count):
        yield from _divided((*box[:axis], box[axis][first : first + count], *box[axis + 1 :]), most_bytes)


def rounds(pieces: Iterable[Piece], ranks: int, round_bytes: int) -> list[Round]:
    """Returns the rounds. Each has at least one shared piece, and as many as fit into `round_bytes`.

    The limit holds on every rank, for the bytes that it reads, sends and receives. Pieces for one rank come
    one at a time, after the shared pieces that precede them.
    """
    found = [Round([], [])]
    held_bytes = np.zeros(ranks, np.int64)
    for piece in pieces:
        if not piece.is_shared:
            found[-1].alone.append(piece)
            continue
        cut, reader = piece.cut, piece.reader
        added_bytes = cut.wanted_bytes.copy()
        added_bytes[reader] = cut.nbytes + cut.sent_bytes - cut.wanted_bytes[reader]
        held_bytes += added_bytes
        if found[-1].shared and held_bytes.max() > round_bytes:
            found.append(Round([], []))
            held_bytes = added_bytes
        found[-1].shared.append(piece)
    return found

"""The bytes of a checkpoint that each rank reads, and the ranks that it sends them to. Arithmetic only.

Each rank wants boxes of tensors, maybe with steps. A tensor is cut into pieces such that each byte that
anybody wants lies in one of them. One rank reads a piece, and sends to each other rank what that one wants of
it. What one rank alone wants it reads beside the rounds, and the other ranks do not count it.

```text
  boxes that ranks want ──> slabs along the first dimension ──> pieces of at most PIECE_BYTES ──> rounds
  (dimensions with steps    boxes that are close together       each to the rank, of those that   until a rank
  split into two)           in it: read in one go               want it, that reads least         has enough
```

Where many ranks want the same, pieces are smaller: the rank that reads one holds a copy for each of the
others, and all ranks are to read in a round.
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

# The places along each dimension, in rising order.
Box: TypeAlias = tuple[range, ...]

PIECE_BYTES, SMALL_PIECE_BYTES = 8 << 20, 256 << 10
# Parts of rows that are at least as long come from storage as fast as whole rows.
LONG_RUN_BYTES = 64 << 10
# Rows are read for several ranks as long as they are at most this many times what those read one by one.
MOST_WASTE = 1.2
_PAGE_BYTES = 4096


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


@dataclass(frozen=True, slots=True, eq=False)
class Cut:
    """A box that is read once, of one tensor or of several that are alike.

    Attributes:
        box: What is read.
        nbytes: How much that is.
        parts_of: By rank, numbers of its requests, each with what it gets of the box.
        takers: The ranks that want some of it.
        wanted_bytes: By rank, what it gets.
        sent_bytes: What all get together.
    """

    box: Box
    nbytes: int
    parts_of: dict[int, list[tuple[int, Box]]]
    takers: _Integers
    wanted_bytes: _Integers
    sent_bytes: int


@dataclass(frozen=True, slots=True)
class Piece:
    """What a rank reads of a tensor, for itself and for others.

    Attributes:
        tensor: The number of the tensor.
        reader: The rank that reads it.
        cut: What it reads.
    """

    tensor: int
    reader: int
    cut: Cut

    @property
    def is_shared(self) -> bool:
        """Whether several ranks want some of it."""
        return len(self.cut.parts_of) > 1


@dataclass(frozen=True, slots=True)
class Round:
    """Pieces that are read before the next ones.

    Attributes:
        shared: Pieces that several ranks want, the same in all ranks. They are swapped first.
        alone: Pieces that this rank alone wants.
    """

    shared: list[Piece]
    alone: list[Piece]


@dataclass(slots=True)
class _JointRead:
    """Boxes that are read in one go.

    Attributes:
        box: What is read.
        boxes: What it is for.
        least_bytes: What comes from storage if nothing is read that nobody wants.
    """

    box: Box
    boxes: list[Box]
    least_bytes: int


def volume(box: Box) -> int:
    """Returns how many bytes a box has."""
    return math.prod(map(len, box))


def within(box: Box, outer: Box) -> tuple[slice, ...]:
    """Returns where a box that is not empty lies in one that has all of it, as an index."""
    found = []
    for places, outer_places in zip(box, outer, strict=True):
        first, last = outer_places.index(places[0]), outer_places.index(places[-1])
        step = (last - first) // (len(places) - 1) if len(places) > 1 else 1
        found.append(slice(first, last + 1, step))
    return tuple(found)


def shared(
    kinds: Sequence[SharedTensor], kind_of: Iterable[int], rank: int, ranks: int, round_bytes: int
) -> list[Piece]:
    """Returns the pieces that several ranks want, and those that `rank` alone wants, in order of the tensors.

    Args:
        kinds: Tensors of which ranks want different boxes. The layers of a model are mostly of one kind.
        kind_of: Of each tensor the number of its kind.
        rank: The rank.
        ranks: How many there are.
        round_bytes: What a rank may hold in a round. All ranks are to be able to read, send and get in it.
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
    """Returns a tensor with two dimensions for one of which each rank wants every n-th place.

    The first one of these counts steps, and the second one places within a step. So what several ranks want
    of each step is one box. The step is what all steps, and the length, are multiples of.
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
    """Yields the parts of a tensor that are to be read once."""
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
    """Returns how large the pieces of a slab may be."""
    if len({request.rank for request in requests}) == 1:
        return PIECE_BYTES
    slab_bytes = volume(slab)
    sent_bytes = sum(volume(part) for request in requests if (part := _common(request.box, slab)))
    # Each rank reads a piece, sends of it, and gets as much from others.
    return min(PIECE_BYTES, max(SMALL_PIECE_BYTES, round_bytes * slab_bytes // (slab_bytes + 2 * sent_bytes)))


def _slabs(tensor: SharedTensor) -> Iterator[tuple[Box, list[int]]]:
    """Yields boxes that are to be read once, and the numbers of the requests that want some of each."""
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
    """Returns a range around places with steps that is the same for those that begin within one step."""
    step = places.step
    return range(places.start // step * step, -(-places.stop // step) * step)


def _joined(shape: tuple[int, ...], boxes: Iterable[Box]) -> list[_JointRead]:
    """Returns how boxes, of which none is empty, are read: each with the one before it, or by itself.

    Boxes are in order of where they begin, so that those close together are neighbours. Where they overlap so
    much that all of them are less in one go, they are read in one.
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
    """Adds a box to others if that takes not much more bytes, and returns whether it did.

    Boxes of long runs that have nothing in common are read as fast one by one.
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
    """Returns how many bytes come from storage for a box: whole pages, and the gaps that are read through.

    Gaps are read where runs recur within `LONG_RUN_BYTES`, as by `slicing` where requests take milliseconds.
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
    """Returns how many bytes of a box lie one after another in the file."""
    run = 1
    for length, places in zip(reversed(shape), reversed(box), strict=True):
        if places.step > 1:
            break
        run *= len(places)
        if len(places) < length:
            break
    return run


def _hull(boxes: Iterable[Box]) -> Box:
    """Returns the smallest box without steps that has all of some boxes, which are not empty."""
    dimensions = zip(*boxes, strict=True)
    return tuple(
        range(min(places[0] for places in them), max(places[-1] for places in them) + 1)
        for them in map(list, dimensions)
    )


def _are_apart(box: Box, other: Box) -> bool:
    """Returns whether two boxes, of which none is empty, have nothing in common."""
    return any(
        places[0] > others[-1]
        or others[0] > places[-1]
        or (places.start - others.start) % math.gcd(places.step, others.step)
        for places, others in zip(box, other, strict=True)
    )


def _common(box: Box, other: Box) -> Box | None:
    """Returns what two boxes have in common. The other one has no steps, or is a part of the first one."""
    found = tuple(map(_bounded, box, other))
    return found if all(found) else None


def _bounded(places: range, other: range) -> range:
    """Returns the places within the bounds of others."""
    first = max(0, -((places.start - other.start) // places.step))
    rest = places[first:]
    return range(rest.start, min(rest.stop, other.stop), rest.step)


def _divided(box: Box, most_bytes: int) -> Iterator[Box]:
    """Yields parts of a box, in order, of at most so many bytes each, but at least of one."""
    axis = next((axis for axis, places in enumerate(box) if len(places) > 1), None)
    if axis is None or volume(box) <= most_bytes:
        yield box
        return
    count = max(1, most_bytes * len(box[axis]) // volume(box))
    for first in range(0, len(box[axis]), count):
        yield from _divided((*box[:axis], box[axis][first : first + count], *box[axis + 1 :]), most_bytes)


def rounds(pieces: Iterable[Piece], ranks: int, round_bytes: int) -> list[Round]:
    """Returns the rounds: as many shared pieces each as take no rank over `round_bytes`, and at least one.

    What a rank has at a time is what it reads, sends and gets. Pieces of one rank come one at a time, after
    the shared ones that come before them.
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

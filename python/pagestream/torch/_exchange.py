"""Lets the ranks of a process group load a checkpoint together: one rank reads each byte for all.

```text
  plan of this rank ───────> _agreement.agreed ──> _shares.shared ──> rounds
                                                                      │
  own pieces <── read ahead by threads ───────────────────────────────┤
      │                                                               │
      ├──> pieces for several ranks: Meeting.meet, all_to_all_single ─┤
      └──> pieces for this rank ──────────────────────────────────────┴──> tensors ──> consumer
```
"""

from __future__ import annotations

import operator
from collections import deque
from contextlib import closing
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np

from pagestream import _native
from pagestream.devices.planned import finished
from pagestream.devices.torch_tensors import TorchTensors
from pagestream.torch._agreement import agreed, bytes_of, read_of
from pagestream.torch._shares import rounds, shared, split, volume, within
from pagestream.weights import arrays, indexing, streaming
from pagestream.weights.dtypes import itemsize, raw_shape

if TYPE_CHECKING:
    from collections.abc import Generator, Iterator

    import torch

    from pagestream.devices.planned import CastOf
    from pagestream.torch._meeting import Meeting
    from pagestream.torch._shares import Box, Piece, Round
    from pagestream.weights.streaming import Strategy, Wanted
    from pagestream.weights.tensor_info import TensorInfo

    _Bytes: TypeAlias = np.ndarray[Any, np.dtype[np.uint8]]

# Default limit on the memory of a rank: a share of the available memory.
_AVAILABLE_SHARE, _MEMORY_BYTES = 8, 1 << 30
# Shares of that limit for a round, and for reading ahead. The rest is for incomplete tensors.
_ROUND_SHARE, _READ_SHARE = 4, 2
# Elements of every type may be stored at multiples of this address.
_ALIGN_BYTES = 16


@dataclass(slots=True)
class _Target:
    """A tensor of this rank while it is incomplete.

    Attributes:
        each: The plan entry.
        box: The box of the tensor, in bytes, that contains the requested part.
        missing_bytes: Number of bytes that have not arrived yet.
        memory: Memory for the box.
    """

    each: Wanted
    box: Box
    missing_bytes: int
    memory: _Bytes | None = None

    def put(self, part: Box, data: _Bytes) -> None:
        """Copies a part to its place."""
        if self.memory is None:
            self.memory = np.empty(list(map(len, self.box)), np.uint8)
        self.memory[within(part, self.box)] = data
        self.missing_bytes -= volume(part)

    def keep(self, part: Box, data: _Bytes) -> None:
        """Takes a part whose memory nothing else uses, and keeps the memory if it is the whole tensor."""
        is_aligned = data.ctypes.data % _ALIGN_BYTES == 0
        if part == self.box and self.memory is None and data.flags.c_contiguous and is_aligned:
            self.memory = data
            self.missing_bytes = 0
        else:
            self.put(part, data)

    def made(self, framework: arrays.Framework, cast_of: CastOf) -> torch.Tensor:
        """Returns the tensor."""
        each, memory = self.each, self.memory
        shape = each.shape if each.part is None else each.part.shape
        if memory is not None and each.part is not None:
            item_bytes = itemsize(each.dtype)
            *lengths, row_bytes = map(len, byte_box(each)[1])
            elements = memory.reshape(*lengths, row_bytes // item_bytes, item_bytes)
            memory = np.ascontiguousarray(elements[_inner(each)])
        nbytes = 0 if memory is None else memory.nbytes
        buffer = None if memory is None else memory.reshape(-1).data
        tensor = framework.make(each.dtype, shape, nbytes, 0, buffer, _nothing)
        return finished(each, tensor, cast_of)


def byte_box(each: Wanted) -> tuple[tuple[int, ...], Box]:
    """Returns the shape of a tensor in bytes, and the smallest box that contains the requested part.

    The box equals the requested part, unless the last dimension has a step. Then it also contains the
    elements in between.
    """
    shape = raw_shape(each.dtype, each.shape, each.info.nbytes)
    if each.part is None or not each.shape:
        return shape, tuple(map(range, shape))
    item_bytes = itemsize(each.dtype)
    parts = [part for part in indexing.parts(each.shape, each.index) if part is not None]
    *outer, last = [_places(part, length) for part, length in zip(parts, each.shape, strict=True)]
    return shape, (*outer, range(last.start * item_bytes, last.stop * item_bytes))


def _places(part: Any, length: int) -> range:  # noqa: ANN401 - an int or a slice
    """Returns the places that a part of an index selects, in ascending order."""
    if not isinstance(part, slice):
        place = operator.index(part) % length
        return range(place, place + 1)
    places = range(*part.indices(length))
    places = places if places.step > 0 else places[::-1]
    return range(places[0], places[-1] + 1, places.step) if places else range(0)


def _inner(each: Wanted) -> tuple[Any, ...]:
    """Returns the index of the requested part in its box, which has an extra dimension for bytes."""
    found: list[Any] = []
    missing = len(each.shape)
    for part in indexing.parts(each.shape, each.index):
        missing -= part is not None
        if isinstance(part, slice):
            step = part.step or 1
            # Only the last dimension contains the elements in between.
            found.append(slice(None, None, step if not missing else (step > 0) - (step < 0)))
        else:
            found.append(part if part is None else 0)
    return tuple(found)


def together(
    meeting: Meeting,
    files: _native.Checkpoint,
    wanted: list[Wanted],
    strategy: Strategy,
    cast_of: CastOf,
    device: torch.device,
    memory_bytes: int | None,
    threads: int | None,
) -> Generator[tuple[Wanted, torch.Tensor], None, None]:
    """Yields the tensors of this rank's plan, in the same order on all ranks.

    The last tensor comes when no other rank needs data from this rank, so that the consumer may then leave.

    Args:
        meeting: The ranks.
        files: The files.
        wanted: This rank's plan.
        strategy: How to read: ``"auto"``, ``"pread"`` or ``"direct"``.
        cast_of: Returns the type of a tensor.
        device: The device for the tensors.
        memory_bytes: Limit on the memory of this rank, besides the tensors that it has yielded.
        threads: Number of threads that read.

    Raises:
        ValueError: Ranks have different checkpoints.
        OSError: A file is missing.
    """
    memory_bytes = memory_bytes or min(_native.available_memory_bytes() // _AVAILABLE_SHARE, _MEMORY_BYTES)
    # All ranks must divide the work in the same way, even if their memory differs.
    round_bytes = min(map(int, meeting.gather("memory", str(memory_bytes)))) // _ROUND_SHARE
    targets, lots, reads = work_of(meeting, files, wanted, round_bytes)
    waiting = deque(sorted(targets))
    means, _ = streaming.chosen(files, reads, strategy, is_limited=True)
    means = "direct" if means == "direct" else "pread"
    reading = bytes_of(files, reads, means, memory_bytes // _READ_SHARE, threads)
    ready = partial(_ready, waiting, targets, TorchTensors(), cast_of, device)
    with closing(reading):
        for number, lot in enumerate(lots, 1):
            if lot.shared:
                _swap(meeting, lot.shared, targets, reading)
            is_needed = number < len(lots)
            yield from ready(is_needed)
            for piece in lot.alone:
                meeting.check()
                _, data = next(reading)
                _keep(piece, piece.cut.parts_of[meeting.rank], targets, data)
                del data
                yield from ready(is_needed)


def work_of(
    meeting: Meeting, files: _native.Checkpoint, wanted: list[Wanted], round_bytes: int
) -> tuple[dict[tuple[int, int], _Target], list[Round], list[Wanted]]:
    """Returns this rank's tensors by tensor and request, the rounds, and the reads of this rank.

    Raises:
        ValueError: Ranks have different checkpoints.
        OSError: A file is missing.
    """
    boxes = [byte_box(each) for each in wanted]
    agreement = agreed(meeting, files, wanted, boxes)
    kinds = [split(kind) for kind in agreement.kinds]
    targets: dict[tuple[int, int], _Target] = {}
    tensor_of: dict[int, tuple[TensorInfo, tuple[int, ...]]] = {}
    for (tensor, number), each in zip(agreement.own, wanted, strict=True):
        kind = kinds[agreement.kind_of[tensor]]
        box = kind.requests[number].box
        targets[tensor, number] = _Target(each, box, volume(box))
        tensor_of[tensor] = each.info, kind.shape
    pieces = shared(kinds, agreement.kind_of, meeting.rank, meeting.size, round_bytes)
    lots = rounds(pieces, meeting.size, round_bytes)
    own = (piece for lot in lots for piece in (*lot.shared, *lot.alone) if piece.reader == meeting.rank)
    return targets, lots, [read_of(*tensor_of[piece.tensor], piece.cut.box) for piece in own]


def _ready(
    waiting: deque[tuple[int, int]],
    targets: dict[tuple[int, int], _Target],
    framework: arrays.Framework,
    cast_of: CastOf,
    device: torch.device,
    is_needed: bool,  # noqa: FBT001 - `partial` supplies the rest
) -> Iterator[tuple[Wanted, torch.Tensor]]:
    """Yields the complete tensors up to the first incomplete one, and forgets them.

    A rank whose data others still need keeps its last tensor.
    """
    while len(waiting) > is_needed and not targets[waiting[0]].missing_bytes:
        target = targets.pop(waiting.popleft())
        each, tensor = target.each, target.made(framework, cast_of).to(device)
        del target
        yield each, tensor
        del tensor


def _keep(
    piece: Piece, parts: list[tuple[int, Box]], targets: dict[tuple[int, int], _Target], data: _Bytes
) -> None:
    """Copies this rank's part of a piece that it has read into its tensors."""
    for number, part in parts:
        target = targets[piece.tensor, number]
        put = target.keep if len(parts) == 1 else target.put
        put(part, data[within(part, piece.cut.box)])


def _swap(
    meeting: Meeting,
    lot: list[Piece],
    targets: dict[tuple[int, int], _Target],
    reading: Iterator[tuple[Wanted, _Bytes]],
) -> None:
    """Reads this rank's pieces of a round, and exchanges parts with the other ranks."""
    outgoing: list[list[_Bytes]] = [[] for _ in range(meeting.size)]
    incoming: list[list[tuple[_Target, Box]]] = [[] for _ in range(meeting.size)]
    for piece in lot:
        own = piece.cut.parts_of.get(meeting.rank, [])
        if piece.reader != meeting.rank:
            incoming[piece.reader].extend((targets[piece.tensor, number], part) for number, part in own)
            continue
        _, data = next(reading)
        _keep(piece, own, targets, data)
        for taker, parts in piece.cut.parts_of.items():
            if taker != meeting.rank:
                outgoing[taker].extend(data[within(part, piece.cut.box)] for _, part in parts)
    came = meeting.swap(outgoing, [sum(volume(part) for _, part in parts) for parts in incoming])
    for buffer, from_rank in zip(came, incoming, strict=True):
        first = 0
        for target, part in from_rank:
            target.put(part, buffer[first : first + volume(part)].reshape(list(map(len, part))))
            first += volume(part)


def _nothing(memory: Any) -> None:  # noqa: ANN401
    raise AssertionError(memory)

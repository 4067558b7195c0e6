"""Copies tensors from files to a device through staging: page-locked memory of a fixed size."""

from __future__ import annotations

import atexit
import os
from collections import deque
from contextlib import ExitStack, closing
from functools import wraps
from inspect import GEN_RUNNING, getgeneratorstate
from typing import TYPE_CHECKING, Any, NamedTuple, ParamSpec, TypeVar
from weakref import WeakSet

import torch

from pagestream import _native
from pagestream._common import ranks
from pagestream.devices import constructors
from pagestream.devices.cuts import cut
from pagestream.devices.pinned import PinnedMemory
from pagestream.devices.planned import finished, shape_of
from pagestream.devices.torch_tensors import dtype_named
from pagestream.weights.dtypes import itemsize
from pagestream.weights.indexing import Selection
from pagestream.weights.streaming import cache_use, chosen

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Iterator

    from pagestream.devices.copy_device import CopyDevice
    from pagestream.devices.planned import CastOf
    from pagestream.weights.indexing import ByteSelection
    from pagestream.weights.streaming import Wanted

# The default size of staging: twice the bytes that the maximum of 64 threads read at a time. On a mount with
# 10 ms per request, half of it was slower, and more was no faster.
_STAGING_BYTES = 128 << 20
# The default for files in the page cache. Less memory is page-locked sooner, and more of it stays in the
# processor's caches: an H100 received 25 GB/s with 64 MiB, and 20 GB/s with 128 MiB.
_CACHED_STAGING_BYTES = 64 << 20
# The minimum: room for a few lots of neighbouring tensors.
LEAST_STAGING_BYTES = 4 << 20
# Large tensors are copied in pieces of this size, or of a quarter of staging if that is less. The copy of a
# piece overlaps the reads of later ones.
_PIECE_BYTES = 16 << 20
_LEAST_PIECES = 4
# In staging a piece keeps its offset within a page of the file, at the cost of up to this many extra bytes.
_EDGE_BYTES = 2 * 4096
# One thread reads a few GB per second from the page cache. A GPU can receive up to ten times that.
_LEAST_THREADS, _MOST_THREADS = 4, 16
# GPU kernels read vectors of this size. A tensor at any other alignment is copied once more.
_ALIGNMENT_BYTES = 16
# Transfers that are still open.
_transfers: WeakSet[Generator[Any, None, None]] = WeakSet()
_Arguments = ParamSpec("_Arguments")
_Pair = TypeVar("_Pair")


class _Piece(NamedTuple):
    """A run of a tensor's bytes, read and copied in one step. Small tensors are one piece.

    Attributes:
        number: The tensor's number in the plan.
        first: Offset of the piece in the tensor's bytes.
    """

    number: int
    first: int


def _ended_at_exit(
    begin: Callable[_Arguments, Generator[_Pair, None, None]],
) -> Callable[_Arguments, Generator[_Pair, None, None]]:
    """Makes the exit of the interpreter close the generators that a function returns."""

    @wraps(begin)
    def begun(*args: _Arguments.args, **kwargs: _Arguments.kwargs) -> Generator[_Pair, None, None]:
        found = begin(*args, **kwargs)
        _transfers.add(found)
        return found

    return begun


@atexit.register
def _end_all() -> None:
    """Ends open transfers. Later in the exit, module globals are None, so a generator could not clean up."""
    with ExitStack() as stack:
        for each in list(_transfers):
            # A daemon thread may be running it. Python refuses to close it then.
            if getgeneratorstate(each) != GEN_RUNNING:
                stack.callback(each.close)


@_ended_at_exit
def transferred(
    files: _native.Checkpoint,
    wanted: list[Wanted],
    device: CopyDevice,
    cast_of: CastOf,
    memory_bytes: int | None,
    threads: int | None,
    strategy: str,
) -> Generator[tuple[Wanted, torch.Tensor], None, None]:
    """Returns a generator of the tensors of a plan on a device, in order.

    ```text
    read into staging ──> copy queued, event recorded ──> handed out: the consumer's stream waits for it
          ▲                          └── event done ──> given back ──┐
          └──────────────────────────────────────────────────────────┘
    ```

    Threads of the native stream read into staging. The consumer's thread does the rest when it asks for the
    next tensor. However this generator ends, no copy is in flight afterwards and no memory is page-locked.
    If a thread hangs in a read from dead storage, the thread and its memory are left behind. The exit of the
    interpreter ends the generator, too.

    Args:
        files: The checkpoint.
        wanted: The plan.
        device: Where tensors go.
        cast_of: Returns a tensor's type on the device; None for its own.
        memory_bytes: Limit on the size of staging; below 4 MiB it counts as 4 MiB. None for a default.
        threads: Number of reading threads; None for a default.
        strategy: ``"pread"`` or ``"direct"``.
    """
    total_bytes = sum(each.nbytes for each in wanted)
    default_bytes = _STAGING_BYTES if strategy == "direct" else _staging_bytes(files, wanted)
    nbytes = max(LEAST_STAGING_BYTES, min(memory_bytes or default_bytes, total_bytes))
    pieces, ranges = _cut(wanted, min(_PIECE_BYTES, nbytes // _LEAST_PIECES) - _EDGE_BYTES)
    process = os.getpid()
    with ExitStack() as stack:
        staging = PinnedMemory(device)
        stack.callback(staging.close)
        staging.pin(nbytes, first_threads())
        try:
            arrivals = _Arrivals(wanted, pieces, device, staging, cast_of)
            following = 0
            with closing(_arriving(files, ranges, staging, arrivals, device, threads, strategy)) as found:
                for number, tensor in found:
                    yield from _empty(wanted[following:number], device, cast_of)
                    yield wanted[number], tensor
                    # Keep no reference: the consumer may free the tensor before it asks for the next.
                    del tensor
                    following = number + 1
            yield from _empty(wanted[following:], device, cast_of)
        finally:
            if os.getpid() != process:
                # In a forked child, the copies and the registrations belong to the parent.
                stack.pop_all()


def _arriving(
    files: _native.Checkpoint,
    ranges: list[tuple[str, ByteSelection | None]],
    staging: PinnedMemory,
    arrivals: _Arrivals,
    device: CopyDevice,
    threads: int | None,
    strategy: str,
) -> Generator[tuple[int, torch.Tensor], None, None]:
    """Yields each tensor with its number in the plan, once its copy is queued."""
    # An event for each lot, oldest first. After the event, the lot's staging may be overwritten.
    copying: deque[Any] = deque()
    first, most = (first_threads(), None) if threads is None else (threads, threads)
    stream = _native.StagedStream(files, ranges, staging.array, first, most, cache_use(strategy))
    try:
        while (lot := stream.next(not copying)) is not None:
            if lot:
                with device.stream():
                    found = arrivals.take(lot)
                    copying.append(device.record())
                device.hand_over(tuple(tensor for _, tensor in found), copying[-1])
                while found:
                    yield found.popleft()
            else:
                copying[0].synchronize()
            while copying and copying[0].query():
                copying.popleft()
                stream.give_back()
    finally:
        stream.close()


def _staging_bytes(files: _native.Checkpoint, wanted: list[Wanted]) -> int:
    """Returns the default size of staging: less if the files are in the page cache now."""
    found, _ = chosen(files, wanted, "auto", is_limited=True)
    return _CACHED_STAGING_BYTES if found == "mapped" else _STAGING_BYTES


def first_threads() -> int:
    """Returns the initial number of reading threads: this process's share of the processors, 4 to 16."""
    share = len(os.sched_getaffinity(0)) // ranks.local_processes()
    return max(_LEAST_THREADS, min(_MOST_THREADS, share))


def _empty(
    wanted: list[Wanted], device: CopyDevice, cast_of: CastOf
) -> Iterator[tuple[Wanted, torch.Tensor]]:
    """Yields tensors without elements. They need no copy."""
    for each in wanted:
        yield each, _made(each, device.empty(0), cast_of)


class _Arrivals:
    """Copies bytes from staging on the device's stream, and makes tensors of them.

    Args:
        wanted: The plan.
        pieces: The pieces of the plan, numbered as in the native stream.
        device: Where tensors go.
        staging: The memory that the native stream reads into.
        cast_of: Returns a tensor's type on the device; None for its own.
    """

    def __init__(
        self,
        wanted: list[Wanted],
        pieces: list[_Piece],
        device: CopyDevice,
        staging: PinnedMemory,
        cast_of: CastOf,
    ) -> None:
        self._wanted = wanted
        self._pieces = pieces
        self._device = device
        self._staging = staging
        self._cast_of = cast_of
        # Device memory of a large tensor that is still missing pieces.
        self._large = constructors.empty((0,), torch.uint8, constructors.CPU)

    def take(self, lot: list[tuple[int, int, int]]) -> deque[tuple[int, torch.Tensor]]:
        """Queues the copy of a lot, side by side in staging. Returns the tensors that it completes."""
        (piece, first, nbytes), (_, last, last_bytes) = lot[0], lot[-1]
        number, begin = self._pieces[piece]
        each = self._wanted[number]
        if nbytes < each.nbytes:
            return self._take_piece(number, begin, first, nbytes)
        block = self._device.empty(last + last_bytes - first)
        self._copy(block, first)
        found: deque[tuple[int, torch.Tensor]] = deque()
        for piece, offset, nbytes in lot:
            number = self._pieces[piece].number
            flat = block[offset - first : offset - first + nbytes]
            if (offset - first) % _ALIGNMENT_BYTES:
                flat = flat.clone()
            found.append((number, _made(self._wanted[number], flat, self._cast_of)))
        return found

    def _take_piece(
        self, number: int, begin: int, first: int, nbytes: int
    ) -> deque[tuple[int, torch.Tensor]]:
        each = self._wanted[number]
        if begin == 0:
            self._large = self._device.empty(each.nbytes)
        self._copy(self._large[begin : begin + nbytes], first)
        if begin + nbytes < each.nbytes:
            return deque()
        flat, self._large = self._large, self._device.empty(0)
        return deque([(number, _made(each, flat, self._cast_of))])

    def _copy(self, target: torch.Tensor, first: int) -> None:
        """Fills `target` from staging, from the offset `first` on. Only queues the copy."""
        for begin, end in self._staging.spans(first, first + target.numel()):
            self._device.copy_into(target[begin - first : end - first], self._staging.array[begin:end])


def _made(each: Wanted, flat: torch.Tensor, cast_of: CastOf) -> torch.Tensor:
    """Makes a tensor from its bytes on the device."""
    return finished(each, flat.view(dtype_named(each.dtype)).view(shape_of(each)), cast_of)


def _cut(
    wanted: list[Wanted], most_bytes: int
) -> tuple[list[_Piece], list[tuple[str, ByteSelection | None]]]:
    """Returns the pieces, each of at most `most_bytes`, and the bytes of the file that each one needs."""
    pieces: list[_Piece] = []
    ranges: list[tuple[str, ByteSelection | None]] = []
    for number, each in enumerate(wanted):
        if 0 < each.nbytes <= most_bytes:
            pieces.append(_Piece(number, 0))
            ranges.append(each.native())
            continue
        size = 1 if each.part is None else itemsize(each.dtype)
        whole = each.part or Selection(0, (each.nbytes,), (1,))
        first = 0
        for part in cut(whole, most_bytes // size):
            pieces.append(_Piece(number, first))
            ranges.append((each.info.name, part.in_bytes(size)))
            first += part.size * size
    return pieces, ranges

"""Streams of tensors: plans, their order, and the arrays as they arrive."""

from __future__ import annotations

import re
from collections.abc import Callable, Generator, Iterator
from dataclasses import dataclass
from typing import Any, Literal, TypeVar

import numpy as np

from pagestream import _native, errors
from pagestream._common import checks, ranks
from pagestream._common.closing import ClosedByWith
from pagestream._common.generators import telling
from pagestream._common.progress import Progress, checked, reporting
from pagestream._common.public import set_module
from pagestream.weights import indexing
from pagestream.weights.arrays import Framework
from pagestream.weights.dtypes import SUB_BYTE_BITS, itemsize
from pagestream.weights.indexing import ByteSelection, Index
from pagestream.weights.plan import Plan, parts
from pagestream.weights.tensor_info import TensorInfo

StreamOrder = Literal["file", "plan", "layer"]
Strategy = Literal["auto", "mapped", "ahead", "pread", "direct"]

_ORDERS = ("file", "plan", "layer")

TensorT_co = TypeVar("TensorT_co", covariant=True)


@set_module("pagestream")
class TensorStream(ClosedByWith, Iterator[tuple[str, TensorT_co]]):
    """Names and tensors, as their bytes arrive: an iterator with a length.

    `Checkpoint.stream` and `pagestream.torch.stream_checkpoint` create it. ``len(stream)`` is the number of
    tensors in its plan, and does not change during iteration. `close`, or the end of a ``with`` block, ends
    all reads early.

    Examples:
        >>> from pagestream import open_checkpoint
        >>> with open_checkpoint("model.safetensors").stream() as stream:
        ...     len(stream), next(stream)[0]
        (2, 'weight')
    """

    __slots__ = ("_length", "_pairs")

    def __init__(self, pairs: Generator[tuple[str, TensorT_co], None, None], length: int) -> None:
        """Keeps the pairs and their number."""
        self._pairs = pairs
        self._length = length

    def __next__(self) -> tuple[str, TensorT_co]:
        """Returns the next name and tensor, once its bytes have arrived."""
        return next(self._pairs)

    def __len__(self) -> int:
        """Returns the number of tensors in the plan."""
        return self._length

    def __bool__(self) -> bool:
        """Returns True, even without tensors: an iterator is not a container."""
        return True

    def close(self) -> None:
        """Ends all reads. Tensors already returned stay valid.

        Examples:
            >>> from pagestream import open_checkpoint
            >>> stream = open_checkpoint("model.safetensors").stream()
            >>> stream.close()
            >>> list(stream)
            []
        """
        self._pairs.close()


@dataclass(slots=True)
class Wanted:
    """A tensor of a plan.

    Attributes:
        info: Its entry in the header.
        index: The requested part; ``...`` for the whole tensor.
        dtype: The element type that the user sees, by its safetensors name.
        shape: The tensor's shape, in elements of `dtype`.
        part: The elements to read; None for all of them.
    """

    info: TensorInfo
    index: Index
    dtype: str
    shape: tuple[int, ...]
    part: indexing.Selection | None

    @property
    def nbytes(self) -> int:
        """The number of bytes to read."""
        return self.info.nbytes if self.part is None else self.part.size * itemsize(self.dtype)

    def native(self) -> tuple[str, ByteSelection | None]:
        """Returns the name and the part in bytes."""
        return self.info.name, None if self.part is None else self.part.in_bytes(itemsize(self.dtype))

    def made(self, framework: Framework, buffer: _native.Exporter) -> Any:  # noqa: ANN401
        """Returns the tensor over memory that contains its bytes."""
        shape = self.shape if self.part is None else self.part.shape

        def fill(memory: Any) -> None:  # noqa: ANN401 - anything with the buffer protocol
            memory[...] = np.frombuffer(buffer, np.uint8)

        try:
            tensor = framework.make(self.dtype, shape, self.nbytes, 0, buffer, fill)
        except errors.FormatError as error:
            message = f"{self.info.path}: tensor {self.info.name!r} at byte {self.info.offset}: {error}"
            raise type(error)(message) from error
        if self.part is not None or self.index is ...:
            return tensor
        return indexing.array_part(tensor, self.index)


def planned(
    names: list[str],
    info_of: Callable[[str], TensorInfo],
    plan: Plan,
    order: StreamOrder,
    framework: Framework,
) -> list[Wanted]:
    """Returns the tensors of a plan, in the order of the stream.

    Args:
        names: All names of the checkpoint, in the order of the files.
        info_of: Returns the header's entry for a tensor.
        plan: The plan to stream; None for all tensors.
        order: ``"file"``, ``"plan"`` or ``"layer"``.
        framework: Creates tensors from the bytes.

    Raises:
        KeyError: There is no tensor of a name.
        IndexError: A part is out of range, or not basic indexing.
        TypeError: `plan` is a str, or contains something other than names.
        ValueError: The order is unknown, or a name occurs twice.
    """
    checks.one_of("order", order, _ORDERS)
    wanted = [
        planned_part(info_of(name), part, framework) for name, part in parts(names, info_of, plan).items()
    ]
    # `names` already has the order of the files.
    if order != "plan" and plan is not None:
        rank = {name: number for number, name in enumerate(names)}
        wanted.sort(key=lambda each: rank[each.info.name])
    if order == "layer":
        wanted.sort(key=lambda each: _numbers_in(each.info.name))
    return wanted


def _numbers_in(name: str) -> list[tuple[int, str]]:
    """Returns a key that sorts names by the numbers in them. Numbers may have any length."""
    digits = (number.lstrip("0") for number in re.findall(r"[0-9]+", name))
    return [(len(each), each) for each in digits]


def planned_part(info: TensorInfo, part: Index | None, framework: Framework) -> Wanted:
    """Returns a plan entry for a part of a tensor; None means the whole tensor.

    Raises:
        SliceError: The part is out of range, or not basic indexing.
    """
    dtype, shape = framework.described(info.dtype, info.shape, info.nbytes)
    if part is None or part is ...:
        return Wanted(info, ..., dtype, shape, None)
    try:
        selected = indexing.select(shape, part, name=repr(info.name))
    except errors.SliceError as error:
        raise indexing.of_tensor(error, info.path, info.name) from error
    # Elements smaller than a byte are unpacked before they are selected.
    return Wanted(info, part, dtype, shape, None if dtype in SUB_BYTE_BITS else selected)


def chosen(
    files: _native.Checkpoint,
    wanted: list[Wanted],
    strategy: Strategy,
    *,
    drop_behind: bool = False,
    is_limited: bool = False,
) -> tuple[str, str]:
    """Returns the strategy to use, and the reason.

    Args:
        files: The files.
        wanted: The plan.
        strategy: The strategy that the caller requested.
        drop_behind: Whether the page cache must stay as it was.
        is_limited: Whether the caller set limits on threads or memory, which a trial of the mount exceeds.

    Raises:
        ValueError: The word is unknown; ``"mapped"`` if a file is not mapped; ``"ahead"`` if reads bypass the
            page cache; or either with `drop_behind`.
    """
    checks.one_of("strategy", strategy, _native.STRATEGIES)
    if strategy == "mapped" and files.mode == "read":
        reason = files.reason or "as was asked for"
        message = f'strategy="mapped" needs a mapping; a file is in "read" mode: {reason}'
        raise ValueError(message)
    if strategy in ("mapped", "ahead") and drop_behind:
        message = f'strategy="{strategy}" yields views of the page cache, which drop_behind=True would empty'
        raise ValueError(message)
    native = [each.native() for each in wanted]
    found, reason = _native.TensorStream.choose(
        files, native, strategy, ranks.local_processes(), not (drop_behind or is_limited)
    )
    if drop_behind and strategy == "auto" and found != "mapped":
        return "direct", f"{reason}; drop_behind=True leaves nothing in the page cache"
    return found, reason


def cache_use(strategy: str, *, drop_behind: bool = False) -> str:
    """Returns the effect of a strategy on the page cache, in the words of `_native.Stream`."""
    if strategy == "direct":
        return "bypass"
    return "drop_behind" if drop_behind else "fill"


def tensors(
    files: _native.Checkpoint,
    wanted: list[Wanted],
    strategy: str,
    framework: Framework,
    view: Callable[[_native.WeightFile, Wanted], Any],
    memory_bytes: int | None,
    threads: int | None,
    checks: _native.ChecksumRun | None,
    *,
    drop_behind: bool,
) -> Generator[tuple[Wanted, Any], None, None]:
    """Yields the tensors of a plan.

    Args:
        files: The files.
        wanted: The plan.
        strategy: A result of `chosen`.
        framework: Creates tensors with their own memory, for ``"pread"`` and ``"direct"``.
        view: Returns a tensor over its file, which is mapped, for ``"mapped"`` and ``"ahead"``.
        memory_bytes: Limit on the bytes that are read and not yet used.
        threads: Number of threads that read.
        checks: The checksums to compare the bytes with; None for no comparison.
        drop_behind: Whether bytes leave the page cache after they were read.
    """
    # A view of a file that was rewritten meanwhile would show the new bytes.
    is_viewed = strategy in ("mapped", "ahead")
    last_of_file = {each.info.path: each.info.name for each in wanted} if is_viewed else {}
    views = _Views(files, view, are_writable=not framework.read_only)
    if strategy == "mapped":
        for each in wanted:
            tensor = views.of(each)
            yield each, tensor
            del tensor
        # The results that the consumer made from the last tensors must not come from a new file either.
        for name in last_of_file.values():
            files.verify_file(name)
        return
    native = [each.native() for each in wanted]
    stream = _native.TensorStream(
        files, native, memory_bytes, threads, checks, cache_use(strategy, drop_behind=drop_behind)
    )
    try:
        while (landed := stream.next()) is not None:
            number, buffer = landed
            each = wanted[number]
            # With "ahead", the bytes are in the page cache now.
            tensor = views.of(each) if is_viewed else each.made(framework, buffer)
            # Keep no reference to this tensor's memory while waiting for the next one.
            del landed, buffer
            yield each, tensor
            del tensor
            if is_viewed:
                files.mark_used(each.info.name)
        for name in last_of_file.values():
            files.verify_file(name)
    finally:
        stream.close()


class _Views:
    """Tensors over their files. A file that was found for one tensor serves its neighbours.

    Writable tensors have their own pages. A write to one of them changes no other tensor of an open
    checkpoint.
    """

    def __init__(
        self,
        files: _native.Checkpoint,
        view: Callable[[_native.WeightFile, Wanted], Any],
        *,
        are_writable: bool,
    ) -> None:
        self._files, self._view, self._are_writable = files, view, are_writable
        self._path = ""
        self._file: _native.WeightFile | None = None

    def of(self, each: Wanted) -> Any:  # noqa: ANN401
        """Returns a tensor over its file, after a check that the file is unchanged."""
        info = each.info
        if self._file is None or info.path != self._path:
            self._file = None  # so that the set of open files may close it
            file = self._files.file_of(info.name, reads_ahead=False)
            self._file = file.with_own_pages() if self._are_writable else file
            self._path = info.path
        tensor = self._view(self._file, each)
        self._file.verify()
        return tensor


def reported(
    pairs: Generator[tuple[Wanted, Any], None, None], wanted: list[Wanted], progress: Progress
) -> TensorStream[Any]:
    """Returns names and tensors, and reports the bytes that the consumer has used."""
    checked(progress)
    return TensorStream(_reported(pairs, wanted, progress), len(wanted))


def _reported(
    pairs: Generator[tuple[Wanted, Any], None, None], wanted: list[Wanted], progress: Progress
) -> Generator[tuple[str, Any], None, None]:
    total_bytes = sum(each.nbytes for each in wanted)
    # Closed here, and not when the last reference is dropped, because an interrupt in between would be lost.
    with telling(pairs), reporting(progress, total_bytes, "tensors") as report:
        done_bytes = 0
        for each, tensor in pairs:
            yield each.info.name, tensor
            # The consumer may need its memory for the next tensor.
            del tensor
            if report is not None:
                done_bytes += each.nbytes
                report(done_bytes)

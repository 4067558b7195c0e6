"""Readers for ``torch.distributed.checkpoint.load``, in place of torch's own for safetensors files."""

from __future__ import annotations

import errno
import json
import os
import warnings
from collections import defaultdict
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import torch
import torch.distributed as dist
from torch.distributed.checkpoint import hf_storage, quantized_hf_storage
from torch.distributed.checkpoint.metadata import (
    ChunkStorageMetadata,
    Metadata,
    MetadataIndex,
    StorageMeta,
    TensorProperties,
    TensorStorageMetadata,
)
from torch.distributed.checkpoint.planner import LoadItemType, LoadPlan, LoadPlanner, ReadItem
from torch.futures import Future

from pagestream._common import checks
from pagestream._common.generators import telling
from pagestream.devices.planned import planned_part
from pagestream.devices.torch_tensors import dtype_named, shape_in_torch
from pagestream.errors import RankError, SafetensorError
from pagestream.torch._joining import joined
from pagestream.torch.weights import tensors_on
from pagestream.weights.checkpoint import Checkpoint, native_files, open_apart

if TYPE_CHECKING:
    from collections.abc import Iterator
    from typing import Any, Never, Self

    from pagestream.torch._meeting import Meeting
    from pagestream.weights.streaming import Strategy, Wanted
    from pagestream.weights.tensor_info import TensorInfo

__all__ = ["HuggingFaceStorageReader", "QuantizedHuggingFaceStorageReader"]

# What torch's writer notes in a file's metadata: where its parts of tensors lie in the whole ones.
_SHARDING, _OFFSETS = "DCP_SHARDING_INFO", "saved_offsets"
_SUFFIX, _INDEX = ".safetensors", ".safetensors.index.json"
# Tensors on other devices get copies of what came to the CPU.
_STREAMED_TO = ("cpu", "cuda", "mps")


@dataclass(frozen=True)
class _Stored:
    """A tensor, or a part of one, in a file.

    Attributes:
        relative_path: The file.
        shape: The shape in the file.
        dtype: The type in the file.
        name: The name among all tensors of all files.
    """

    relative_path: str
    shape: torch.Size
    dtype: torch.dtype
    name: str


@dataclass(frozen=True)
class _SharedReads:
    """What the coordinator adds to each plan: that so many ranks read together."""

    ranks: int


class HuggingFaceStorageReader(hf_storage.HuggingFaceStorageReader):
    """Reads safetensors files for ``torch.distributed.checkpoint.load``.

    It takes the place of ``torch.distributed.checkpoint.HuggingFaceStorageReader``. It reads exactly the
    ranges that the local shards of DTensors need, many reads at a time, within a budget of memory; and with
    several ranks each range is read by one of those that need it, and sent to the others.

    Args:
        path: The folder of the ``.safetensors`` files. If it has an index, this decides which file has a
            tensor, as for `open_checkpoint`. Without an index all files count, as with torch's reader, or
            ``model.safetensors`` alone if there is one. Or an open `Checkpoint`, made with options of its own
            such as ``cache_root`` and ``strict=False``, which stays open.
        thread_count: Threads that read. None means ``PAGESTREAM_THREADS``, or as many as the storage is slow.
        process_group: The group that ``load`` gets, whose ranks share the reads; None for the default one.
            With None and a ``load`` of another group each rank reads for itself, which a warning tells.
        read_once: Whether ranks share the reads. With False each reads all that it needs.
        memory_bytes: Bytes that are read ahead and not yet used; see `Checkpoint.stream`.

    Raises:
        ValueError: A number is out of range.

    Examples:
        >>> import warnings
        >>> import torch
        >>> import torch.distributed.checkpoint as dcp
        >>> from pagestream.torch import HuggingFaceStorageReader
        >>> state = {"weight": torch.empty(2, 3, dtype=torch.float64)}
        >>> with warnings.catch_warnings():
        ...     warnings.simplefilter("ignore")  # that this is one process
        ...     dcp.load(state, storage_reader=HuggingFaceStorageReader("."), no_dist=True)
        >>> state["weight"].sum()
        tensor(6., dtype=torch.float64)
    """

    def __init__(
        self,
        path: str | os.PathLike[str] | Checkpoint,
        thread_count: int | None = None,
        *,
        process_group: dist.ProcessGroup | None = None,
        read_once: bool = True,
        memory_bytes: int | None = None,
    ) -> None:
        """Keeps the arguments. Nothing is opened yet."""
        self._given = path if isinstance(path, Checkpoint) else None
        folder = os.path.dirname(next(iter(path.files), "")) if isinstance(path, Checkpoint) else path
        hf_storage.HuggingFaceStorageReader.__init__(self, os.fspath(folder) or ".")
        if thread_count is not None:
            checks.at_least(1, "thread_count", thread_count)
        self._threads = thread_count
        self._read_once = checks.check_bool("read_once", read_once)
        self._memory_bytes = memory_bytes
        self._group = process_group
        # Files may have parts of the same tensors: names here begin with the number of a file.
        self._weights: Checkpoint | None = None
        # By the name in the files.
        self._last_of: dict[str, str] = {}

    def reset(self, checkpoint_id: str | os.PathLike[str] | None = None) -> None:
        """Forgets what was read; `checkpoint_id` is another folder to read from.

        Examples:
            >>> from pagestream.torch import HuggingFaceStorageReader
            >>> HuggingFaceStorageReader("elsewhere").reset(".")
        """
        super().reset(checkpoint_id)
        if checkpoint_id:
            self._given = None
        self._weights = None

    def read_metadata(self) -> Metadata:
        """Opens the files, in parallel, and returns what their headers say.

        Raises:
            OSError: A file cannot be opened; with ``errno`` and ``filename``.
            SafetensorError: The folder has no valid checkpoint; see `open_checkpoint`.

        Examples:
            >>> from pagestream.torch import HuggingFaceStorageReader
            >>> sorted(HuggingFaceStorageReader(".").read_metadata().state_dict_metadata)
            ['bias', 'weight']
        """
        self.storage_data: dict[MetadataIndex, _Stored] = {}
        self._weights, self._last_of = self._given, {}
        if self._weights is None and any(name.endswith((_SUFFIX, _INDEX)) for name in os.listdir(self.path)):
            self._weights = open_apart(os.fspath(self.path))
        if self._weights is not None:
            self._note_tensors(self._weights)
        tensors: dict[str, TensorStorageMetadata] = {}
        for place, stored in self.storage_data.items():
            offsets = place.offset or torch.Size()
            known = tensors.setdefault(
                place.fqn, TensorStorageMetadata(TensorProperties(dtype=stored.dtype), offsets, [])
            )
            known.chunks.append(ChunkStorageMetadata(offsets, stored.shape))
            ends = [offset + length for offset, length in zip(offsets, stored.shape, strict=True)]
            known.size = torch.Size(map(max, known.size, ends))
        return Metadata(
            dict(tensors), storage_data=self.storage_data, storage_meta=StorageMeta(load_id=self.load_id)
        )

    def _note_tensors(self, weights: Checkpoint) -> None:
        """Notes where each part of a tensor is. Of two files that have a part the last one counts."""
        files = native_files(weights)
        places: dict[int, Any] = {}
        for apart in weights:
            number, name = files.number_of(apart), files.name_in_file(apart)
            info = weights.info(apart)
            shape = torch.Size(shape_in_torch(info.dtype, info.shape))
            try:
                if number not in places:
                    told = files.metadata_of(number) or {}
                    places[number] = json.loads(told.get(_SHARDING, "null"))
                offsets = _offsets(places[number], name, len(shape))
            except (LookupError, TypeError, ValueError) as error:
                message = (
                    f"{info.path}: {_SHARDING!r} of the metadata does not say where tensor {name!r} lies in "
                    f"the whole one: {error!r}"
                )
                raise SafetensorError(message) from error
            stored = _Stored(info.path, shape, dtype_named(info.dtype), apart)
            self.storage_data[MetadataIndex(name, offsets)] = stored
            self._last_of[name] = apart

    def prepare_global_plan(self, plans: list[LoadPlan]) -> list[LoadPlan]:
        """Has the ranks share their reads, unless each is to read for itself. For the coordinator.

        Examples:
            >>> from torch.distributed.checkpoint.planner import LoadPlan
            >>> from pagestream.torch import HuggingFaceStorageReader
            >>> HuggingFaceStorageReader(".").prepare_global_plan([LoadPlan([])])
            [LoadPlan(items=[], storage_data=None, planner_data=None)]
        """
        if not self._read_once or len(plans) == 1 or not any(plan.items for plan in plans):
            return plans
        return [replace(plan, storage_data=_SharedReads(len(plans))) for plan in plans]

    def read_data(self, plan: LoadPlan, planner: LoadPlanner) -> Future[None]:
        """Reads what a plan wants, and copies it into the planner's tensors.

        Raises:
            MappedReadError: A file was cut or its storage failed.
            FileChangedError: A file was rewritten since its header was read.
            FileNotFoundError: The folder has no safetensors files, and some are needed.
            RankError: Another rank has failed.
            ValueError: The ranks that load are not those of the `process_group` that the reader was given.

        Warns:
            UserWarning: The reader was given none, and those that load are not all ranks: each reads for
                itself.

        Examples:
            >>> from torch.distributed.checkpoint import DefaultLoadPlanner
            >>> from torch.distributed.checkpoint.planner import LoadPlan
            >>> from pagestream.torch import HuggingFaceStorageReader
            >>> HuggingFaceStorageReader(".").read_data(LoadPlan([]), DefaultLoadPlanner()).done()
            True
        """
        try:
            with joined(self._group_of(plan)) as meeting:
                weights = self._opened(plan)
                if weights is not None:
                    self._read_from(weights, plan.items, planner, meeting)
        except RankError as error:
            if error.is_gone:
                raise _UnsendableError(error.rank, error.told, is_gone=True) from error
            raise
        done: Future[None] = Future()
        done.set_result(None)
        return done

    def _opened(self, plan: LoadPlan) -> Checkpoint | None:
        """Returns the files, None if there are none and none are needed.

        They are not open yet if a plan was made from what another reader has said.
        """
        is_needed = bool(plan.items) or isinstance(plan.storage_data, _SharedReads)
        if self._weights is None and is_needed:
            self.read_metadata()
            if self._weights is None:
                message = f"no {_SUFFIX} files, of which {len(plan.items)} parts are to be read here"
                raise FileNotFoundError(errno.ENOENT, message, os.fspath(self.path))
        return self._weights

    def _group_of(self, plan: LoadPlan) -> dist.ProcessGroup | None:
        """Returns the group whose ranks share the reads, if they do."""
        shared = plan.storage_data
        if not isinstance(shared, _SharedReads):
            return None
        group = self._group or dist.group.WORLD
        if group is not None and dist.get_world_size(group) == shared.ranks:
            return group
        found = 0 if group is None else dist.get_world_size(group)
        message = (
            f"{shared.ranks} ranks load, but the reader's process group has {found}: give the reader the "
            "process_group that load gets, or read_once=False"
        )
        if self._group is not None:
            raise ValueError(message)
        warnings.warn(f"each rank reads for itself: {message}", stacklevel=3)
        return None

    def _read_from(
        self,
        weights: Checkpoint,
        items: list[ReadItem],
        planner: LoadPlanner,
        meeting: Meeting | None,
    ) -> None:
        """Reads what items want."""
        for item in items:
            if item.type == LoadItemType.BYTE_IO:
                message = f"{item.storage_index.fqn!r}: safetensors files have tensors alone"
                raise SafetensorError(message)
        parts_of = [
            (item, [(weights.info(name), index) for name, index in self._parts_of(item)]) for item in items
        ]
        # The parts of an item come together, wherever they lie: one is held until the other is there.
        parts_of.sort(key=lambda each: _place(each[1][-1]))
        parts = [(item, *part) for item, of_item in parts_of for part in sorted(of_item, key=_place)]
        wanted = [_wanted(info, index) for _, info, index in parts]
        item_of = {id(each): item for each, (item, _, _) in zip(wanted, parts, strict=True)}
        device, strategy = _place_of(planner, items)
        pairs = tensors_on(
            device,
            weights,
            wanted,
            strategy=strategy,
            cast_of=lambda _: None,
            memory_bytes=self._memory_bytes,
            threads=self._threads,
            meeting=meeting,
            may_view=True,
        )
        with telling(pairs):
            for each, tensor in pairs:
                self._take(item_of[id(each)], each, tensor, planner)
                del tensor

    def _parts_of(self, item: ReadItem) -> Iterator[tuple[str, tuple[slice, ...]]]:
        """Yields the parts of stored tensors that an item is made of, the largest one last."""
        yield self.storage_data[item.storage_index].name, _box(item)

    def _take(self, item: ReadItem, each: Wanted, tensor: torch.Tensor, planner: LoadPlanner) -> None:
        """Copies a part that has come to where it belongs."""
        del each
        _put(item, tensor, planner)


class QuantizedHuggingFaceStorageReader(
    quantized_hf_storage.QuantizedHuggingFaceStorageReader, HuggingFaceStorageReader
):
    """Reads quantised safetensors files for ``torch.distributed.checkpoint.load``, and dequantises them.

    It takes the place of torch's ``QuantizedHuggingFaceStorageReader``, by whose arithmetic tensors become
    what they were: FP8 in blocks with ``.weight_scale_inv``, and MXFP4 with ``_blocks`` and ``_scales``.
    Reads are those of `HuggingFaceStorageReader`, and so are the other arguments.

    Args:
        path: The folder, or an open `Checkpoint`.
        thread_count: Threads that read.
        target_dtype: The type of dequantised tensors.
        block_size: The length of a block of FP8 weights, in elements, in both dimensions.
        process_group: The group whose ranks share the reads.
        read_once: Whether ranks share the reads.
        memory_bytes: Bytes that are read ahead and not yet used.

    Raises:
        ValueError: A number is out of range.

    Examples:
        >>> from pagestream.torch import QuantizedHuggingFaceStorageReader
        >>> QuantizedHuggingFaceStorageReader(".", block_size=64).block_size
        64
    """

    def __init__(
        self,
        path: str | os.PathLike[str] | Checkpoint,
        thread_count: int | None = None,
        target_dtype: torch.dtype = torch.float32,
        block_size: int = 128,
        *,
        process_group: dist.ProcessGroup | None = None,
        read_once: bool = True,
        memory_bytes: int | None = None,
    ) -> None:
        """Keeps the arguments. Nothing is opened yet."""
        HuggingFaceStorageReader.__init__(
            self,
            path,
            thread_count,
            process_group=process_group,
            read_once=read_once,
            memory_bytes=memory_bytes,
        )
        self.target_dtype, self.block_size = target_dtype, block_size
        self._weight_scale_mapping: dict[str, str] = {}
        self._weight_map: dict[str, str] = {}
        self._tensor_full_shapes: dict[str, torch.Size] = {}
        self._held: defaultdict[int, dict[str, torch.Tensor]] = defaultdict(dict)

    def read_metadata(self) -> Metadata:
        """Opens the files, in parallel, and returns what the tensors are once they are dequantised.

        Raises:
            OSError: A file or the index cannot be opened; with ``errno`` and ``filename``.
            SafetensorError: The folder has no valid checkpoint; see `open_checkpoint`.

        Examples:
            >>> from pagestream.torch import QuantizedHuggingFaceStorageReader
            >>> sorted(QuantizedHuggingFaceStorageReader(".").read_metadata().state_dict_metadata)
            ['bias', 'weight']
        """
        metadata = super().read_metadata()
        # What a load that failed has left is of items that are no more.
        self._held.clear()
        return metadata  # type: ignore[no-any-return]

    def _load_quantization_metadata(self) -> None:
        """Pairs weights and scales by name. torch's reader would read the index again for that."""
        self._weight_scale_mapping = {}
        # Scales come beside their weights here, whichever file has them: torch's reader shall open none.
        self._build_weight_scale_mapping(dict.fromkeys(self._last_of, ""))

    def _parts_of(self, item: ReadItem) -> Iterator[tuple[str, tuple[slice, ...]]]:
        name = item.storage_index.fqn
        if not self._is_tensor_quantized(name):
            yield from super()._parts_of(item)
            return
        yield self._last_of[self._weight_scale_mapping[name]], ()
        try:
            super()._process_read_request(_Asking(), item, None)  # type: ignore[arg-type]
        except _Asked as asked:
            yield self.storage_data[item.storage_index].name, asked.index

    def _take(self, item: ReadItem, each: Wanted, tensor: torch.Tensor, planner: LoadPlanner) -> None:
        name = item.storage_index.fqn
        if not self._is_tensor_quantized(name):
            super()._take(item, each, tensor, planner)
            return
        held = self._held[id(item)]
        assert self._weights is not None  # noqa: S101 - for the type; tensors come from it
        held[native_files(self._weights).name_in_file(each.info.name)] = tensor
        if len(held) > 1:
            super()._process_read_request(_Held(self._held.pop(id(item))), item, planner)


class _UnsendableError(RankError):
    """A rank is gone: torch would wait for it, to send it this error.

    torch sends what a reader raises to all ranks, and for that it pickles it.
    """

    def __reduce__(self) -> Never:
        """Raises the error here."""
        raise self


class _Asked(BaseException):
    """Which part of a tensor torch's reader wants. No `Exception`, which that reader would log."""

    def __init__(self, index: tuple[slice, ...]) -> None:
        super().__init__(index)
        self.index = index


class _Asking:
    """In the place of an open file: tells what is asked of it."""

    def get_slice(self, name: str) -> Self:  # noqa: ARG002
        return self

    def __getitem__(self, index: tuple[slice, ...]) -> torch.Tensor:
        raise _Asked(index)


class _Held:
    """In the place of an open file: has the parts that were read."""

    def __init__(self, tensors: dict[str, torch.Tensor]) -> None:
        self._tensors = tensors

    def get_tensor(self, name: str) -> torch.Tensor:
        return self._tensors[name]

    def get_slice(self, name: str) -> _HeldPart:
        return _HeldPart(self._tensors[name])


class _HeldPart:
    """In the place of a slice: the part that was read."""

    def __init__(self, tensor: torch.Tensor) -> None:
        self._tensor = tensor

    def __getitem__(self, index: tuple[slice, ...]) -> torch.Tensor:
        return self._tensor


def _offsets(of_file: Any, name: str, dimensions: int) -> torch.Size:  # noqa: ANN401 - what JSON gives
    """Returns where a stored tensor begins in the whole one; with None it is the whole one."""
    if of_file is None:
        return torch.Size([0] * dimensions)
    offsets = torch.Size(of_file[name][_OFFSETS])
    if len(offsets) != dimensions or min(offsets, default=0) < 0:
        message = f"{_OFFSETS} {list(offsets)} for {dimensions} dimensions"
        raise ValueError(message)
    return offsets


def _box(item: ReadItem) -> tuple[slice, ...]:
    """Returns what an item wants of its tensor."""
    return tuple(
        slice(offset, offset + length)
        for offset, length in zip(item.storage_offsets, item.lengths, strict=True)
    )


def _place(part: tuple[TensorInfo, tuple[slice, ...]]) -> tuple[str, int]:
    info, _ = part
    return info.path, info.offset


def _wanted(info: TensorInfo, index: tuple[slice, ...]) -> Wanted:
    """Returns a part of a tensor; all of it as such."""
    is_whole = all(
        part.indices(length) == (0, length, 1) for part, length in zip(index, info.shape, strict=False)
    )
    return planned_part(info, None if is_whole else index)


def _place_of(planner: LoadPlanner, items: list[ReadItem]) -> tuple[torch.device, Strategy]:
    """Returns where tensors are read to, and how: to where those of the items are, if that is one place.

    Else they come to memory of their own on the CPU: pages of a file must not be copied to a device.
    """
    # `resolve_tensor` is to be called right before `commit_tensor`; planners may allocate in it.
    lookup = getattr(planner, "lookup_tensor", None)
    devices = set() if lookup is None else {lookup(item.dest_index).device for item in items}
    if len(devices) == 1 and (device := devices.pop()).type in _STREAMED_TO:
        return device, "auto"
    return torch.device("cpu"), "pread"


def _put(item: ReadItem, tensor: torch.Tensor, planner: LoadPlanner) -> None:
    """Copies what was read for an item into the planner's tensor."""
    target = planner.resolve_tensor(item).detach()
    if target.size() != tensor.size():
        message = (
            f"{item.storage_index.fqn!r}: {list(tensor.shape)} elements were read for {list(target.shape)}"
        )
        raise ValueError(message)
    target.copy_(tensor)
    planner.commit_tensor(item, target)

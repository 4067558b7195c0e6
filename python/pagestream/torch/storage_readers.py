"""Readers for ``torch.distributed.checkpoint.load`` that replace torch's own readers of safetensors files."""

from __future__ import annotations

import errno
import json
import os
import warnings
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any, Never, Self

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
from pagestream._common.paths import expanded
from pagestream._common.public import set_module
from pagestream.devices.planned import planned_part
from pagestream.devices.torch_tensors import dtype_named, shape_in_torch
from pagestream.errors import RankError, SafetensorError
from pagestream.torch._joining import joined
from pagestream.torch._meeting import Meeting
from pagestream.torch.weights import tensors_on
from pagestream.weights.checkpoint import Checkpoint, native_files, open_apart
from pagestream.weights.streaming import Strategy, Wanted
from pagestream.weights.tensor_info import TensorInfo

__all__ = ["HuggingFaceStorageReader", "QuantizedHuggingFaceStorageReader"]

# torch's writer records in each file's metadata where its parts begin in the whole tensors.
_SHARDING, _OFFSETS = "DCP_SHARDING_INFO", "saved_offsets"
_SUFFIX, _INDEX = ".safetensors", ".safetensors.index.json"
# Devices that receive tensors directly. For any other device, tensors are read on the CPU and then copied.
_STREAMED_TO = ("cpu", "cuda", "mps")


@dataclass(frozen=True)
class _Stored:
    """A tensor, or a part of one, in a file.

    Attributes:
        relative_path: The path of the file.
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
    """Marks a plan whose reads are shared. The coordinator adds it to the plan of each rank.

    Attributes:
        ranks: The number of ranks that load.
    """

    ranks: int


@set_module("pagestream.torch")
class HuggingFaceStorageReader(hf_storage.HuggingFaceStorageReader):
    """Reads safetensors files for ``torch.distributed.checkpoint.load``.

    A drop-in replacement for ``torch.distributed.checkpoint.HuggingFaceStorageReader``. It reads only the
    ranges that the local shards of DTensors need, with many reads in flight and a limit on memory. If several
    ranks need the same range, one of them reads it and sends it to the rest.

    Args:
        path: The folder with the ``.safetensors`` files. An index in the folder decides which file to use for
            each tensor, as in `open_checkpoint`. Without an index, the reader uses ``model.safetensors`` if
            it exists, and otherwise all files, as torch's reader does. To set options such as ``cache_root``
            or ``strict=False``, pass an open `Checkpoint` instead; it stays open.
        thread_count: Number of threads that read. None means ``PAGESTREAM_THREADS``, or 8, and up to 64 while
            they wait for storage.
        process_group: The process group that is passed to ``load``. Its ranks share the reads. None means the
            default group. If ``load`` then runs in a group of another size, each rank reads for itself, with
            a warning.
        read_once: Whether ranks share the reads. With False, each rank reads everything that it needs.
        memory_bytes: Limit on the bytes that are read ahead and not yet used; see `Checkpoint.stream`.

    Raises:
        ValueError: A number is out of range.

    Examples:
        >>> import warnings
        >>> import torch
        >>> import torch.distributed.checkpoint as dcp
        >>> from pagestream.torch import HuggingFaceStorageReader
        >>> state = {"weight": torch.empty(2, 3, dtype=torch.float64)}
        >>> with warnings.catch_warnings():
        ...     warnings.simplefilter("ignore")  # torch warns that it runs in a single process
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
        """Keeps the arguments. No file is opened yet."""
        self._given = path if isinstance(path, Checkpoint) else None
        folder = os.path.dirname(next(iter(path.files), "")) if isinstance(path, Checkpoint) else path
        hf_storage.HuggingFaceStorageReader.__init__(self, expanded(folder) or ".")
        if thread_count is not None:
            checks.at_least(1, "thread_count", thread_count)
        self._threads = thread_count
        self._read_once = checks.check_bool("read_once", read_once)
        self._memory_bytes = memory_bytes
        self._group = process_group
        # Several files may hold parts of one tensor. `open_apart` therefore adds the file's number to names.
        self._weights: Checkpoint | None = None
        # For each name in the files, the name in `_weights` of its last part.
        self._last_of: dict[str, str] = {}

    def reset(self, checkpoint_id: str | os.PathLike[str] | None = None) -> None:
        """Forgets the files' metadata. If `checkpoint_id` is given, the next load reads from that folder.

        Examples:
            >>> from pagestream.torch import HuggingFaceStorageReader
            >>> HuggingFaceStorageReader("elsewhere").reset(".")
        """
        super().reset(expanded(checkpoint_id) if checkpoint_id else None)
        if checkpoint_id:
            self._given = None
        self._weights = None

    def read_metadata(self) -> Metadata:
        """Opens the files in parallel, and returns the metadata from their headers.

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
        """Records where each part of a tensor is stored. If two files hold the same part, the last wins."""
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
                    f"the whole tensor: {error!r}"
                )
                raise SafetensorError(message) from error
            stored = _Stored(info.path, shape, dtype_named(info.dtype), apart)
            self.storage_data[MetadataIndex(name, offsets)] = stored
            self._last_of[name] = apart

    def prepare_global_plan(self, plans: list[LoadPlan]) -> list[LoadPlan]:
        """Marks the plans of several ranks as shared, if `read_once` is set. Runs on the coordinator.

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
        """Reads the items of a plan, and copies them into the planner's tensors.

        Raises:
            MappedReadError: A file was truncated, or its storage failed.
            FileChangedError: A file was rewritten after its header was read.
            FileNotFoundError: The plan needs files, and the folder has no safetensors files.
            RankError: Another rank has failed.
            ValueError: The reader's `process_group` and the group that loads differ in their number of ranks.

        Warns:
            UserWarning: The reader has no `process_group`, and the default group has a different number of
                ranks than the group that loads. Each rank then reads for itself.

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
        """Returns the open files. None if the folder has none and the plan needs none.

        This opens the files if another reader provided the metadata for the plan.

        Raises:
            FileNotFoundError: The plan needs files, and the folder has none.
        """
        is_needed = bool(plan.items) or isinstance(plan.storage_data, _SharedReads)
        if self._weights is None and is_needed:
            self.read_metadata()
            if self._weights is None:
                message = f"no {_SUFFIX} files, but this rank's plan reads {len(plan.items)} parts of tensors"
                raise FileNotFoundError(errno.ENOENT, message, os.fspath(self.path))
        return self._weights

    def _group_of(self, plan: LoadPlan) -> dist.ProcessGroup | None:
        """Returns the group whose ranks share the reads. None if each rank reads for itself.

        Raises:
            ValueError: The reader's `process_group` and the group that loads differ in their number of ranks.
        """
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
        """Reads the items of a plan into the planner's tensors."""
        for item in items:
            if item.type == LoadItemType.BYTE_IO:
                message = f"{item.storage_index.fqn!r} is not a tensor: safetensors files store only tensors"
                raise SafetensorError(message)
        parts_of = [
            (item, [(weights.info(name), index) for name, index in self._parts_of(item)]) for item in items
        ]
        # Read the parts of an item one after the other, wherever they are stored: the first part stays in
        # memory until the second one arrives.
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
        """Yields the parts of stored tensors that make up an item, the largest part last."""
        yield self.storage_data[item.storage_index].name, _box(item)

    def _take(self, item: ReadItem, each: Wanted, tensor: torch.Tensor, planner: LoadPlanner) -> None:
        """Copies a part that has been read into the planner's tensor."""
        del each
        _put(item, tensor, planner)


@set_module("pagestream.torch")
class QuantizedHuggingFaceStorageReader(
    quantized_hf_storage.QuantizedHuggingFaceStorageReader, HuggingFaceStorageReader
):
    """Reads quantised safetensors files for ``torch.distributed.checkpoint.load``, and dequantises them.

    A drop-in replacement for torch's ``QuantizedHuggingFaceStorageReader``, with torch's arithmetic. It
    supports block-wise FP8 (``.weight_scale_inv``) and MXFP4 (``_blocks`` and ``_scales``). It reads files as
    `HuggingFaceStorageReader` does, and shares its other arguments.

    Args:
        path: The folder, or an open `Checkpoint`.
        thread_count: Number of threads that read.
        target_dtype: The type of dequantised tensors.
        block_size: The length of a block of FP8 weights, in elements, in both dimensions.
        process_group: The group whose ranks share the reads.
        read_once: Whether ranks share the reads.
        memory_bytes: Limit on the bytes that are read ahead and not yet used.

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
        """Keeps the arguments. No file is opened yet."""
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
        """Opens the files in parallel, and returns the metadata of the dequantised tensors.

        Raises:
            OSError: A file or the index cannot be opened; with ``errno`` and ``filename``.
            SafetensorError: The folder has no valid checkpoint; see `open_checkpoint`.

        Examples:
            >>> from pagestream.torch import QuantizedHuggingFaceStorageReader
            >>> sorted(QuantizedHuggingFaceStorageReader(".").read_metadata().state_dict_metadata)
            ['bias', 'weight']
        """
        metadata = super().read_metadata()
        # Drop the parts that a failed load left behind: a new item may have the `id` of an old one.
        self._held.clear()
        return metadata  # type: ignore[no-any-return]

    def _load_quantization_metadata(self) -> None:
        """Pairs weights and scales by name. torch's own method would read the index again."""
        self._weight_scale_mapping = {}
        # Pretend that all tensors are in one file. Otherwise torch's reader would open the scale's file.
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
    """A rank is gone, and this error must stay on the rank that raises it.

    torch pickles a reader's exception to send it to all ranks, and would then wait for the dead rank. When
    torch pickles this error, the error is raised instead.
    """

    def __reduce__(self) -> Never:
        """Raises the error instead of pickling it."""
        raise self


class _Asked(BaseException):
    """The part of a tensor that torch's reader requests. Not an `Exception`: torch's reader would log it."""

    def __init__(self, index: tuple[slice, ...]) -> None:
        super().__init__(index)
        self.index = index


class _Asking:
    """A stand-in for an open file that raises the requested slice as `_Asked`."""

    def get_slice(self, name: str) -> Self:  # noqa: ARG002
        return self

    def __getitem__(self, index: tuple[slice, ...]) -> torch.Tensor:
        raise _Asked(index)


class _Held:
    """A stand-in for an open file that returns parts that were read already."""

    def __init__(self, tensors: dict[str, torch.Tensor]) -> None:
        self._tensors = tensors

    def get_tensor(self, name: str) -> torch.Tensor:
        return self._tensors[name]

    def get_slice(self, name: str) -> _HeldPart:
        return _HeldPart(self._tensors[name])


class _HeldPart:
    """A stand-in for a safetensors slice that returns a part that was read already."""

    def __init__(self, tensor: torch.Tensor) -> None:
        self._tensor = tensor

    def __getitem__(self, index: tuple[slice, ...]) -> torch.Tensor:
        return self._tensor


def _offsets(of_file: Any, name: str, dimensions: int) -> torch.Size:  # noqa: ANN401 - parsed JSON
    """Returns where a stored part begins in its tensor. Without metadata of the file, the part is the tensor.

    Raises:
        LookupError: The metadata has no offsets for the tensor.
        TypeError: The metadata is not a mapping of tensors.
        ValueError: The offsets are negative, or do not match the dimensions.
    """
    if of_file is None:
        return torch.Size([0] * dimensions)
    offsets = torch.Size(of_file[name][_OFFSETS])
    if len(offsets) != dimensions or min(offsets, default=0) < 0:
        message = f"{_OFFSETS} {list(offsets)} for {dimensions} dimensions"
        raise ValueError(message)
    return offsets


def _box(item: ReadItem) -> tuple[slice, ...]:
    """Returns the slices of the stored tensor that an item reads."""
    return tuple(
        slice(offset, offset + length)
        for offset, length in zip(item.storage_offsets, item.lengths, strict=True)
    )


def _place(part: tuple[TensorInfo, tuple[slice, ...]]) -> tuple[str, int]:
    info, _ = part
    return info.path, info.offset


def _wanted(info: TensorInfo, index: tuple[slice, ...]) -> Wanted:
    """Returns a plan entry for a part of a tensor. A part that covers the tensor becomes the whole tensor."""
    is_whole = all(
        part.indices(length) == (0, length, 1) for part, length in zip(index, info.shape, strict=False)
    )
    return planned_part(info, None if is_whole else index)


def _place_of(planner: LoadPlanner, items: list[ReadItem]) -> tuple[torch.device, Strategy]:
    """Returns the device that tensors are read to, and the strategy.

    If all target tensors are on one device that can receive tensors directly, it is that device. Otherwise,
    tensors are read into CPU memory, never mapped: pages of a file must not be copied to a device.
    """
    # Not `resolve_tensor`: planners may allocate in it, and expect `commit_tensor` right after it.
    lookup = getattr(planner, "lookup_tensor", None)
    devices = set() if lookup is None else {lookup(item.dest_index).device for item in items}
    if len(devices) == 1 and (device := devices.pop()).type in _STREAMED_TO:
        return device, "auto"
    return torch.device("cpu"), "pread"


def _put(item: ReadItem, tensor: torch.Tensor, planner: LoadPlanner) -> None:
    """Copies the tensor that was read for an item into the planner's tensor.

    Raises:
        ValueError: The shapes differ.
    """
    target = planner.resolve_tensor(item).detach()
    if target.size() != tensor.size():
        message = (
            f"{item.storage_index.fqn!r}: the part that was read has shape {list(tensor.shape)}, but the "
            f"planner's tensor has shape {list(target.shape)}"
        )
        raise ValueError(message)
    target.copy_(tensor)
    planner.commit_tensor(item, target)

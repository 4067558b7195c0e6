"""Loading a checkpoint as tensors on a device: `load_state_dict`, `stream_checkpoint`."""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable
from contextlib import closing
from functools import partial
from typing import TypedDict

import torch
import torch.distributed as dist

from pagestream import _native
from pagestream._common import checks, environment
from pagestream._common.dtype_names import AnyDtype
from pagestream._common.keywords import advises
from pagestream._common.progress import Progress
from pagestream._common.public import set_module
from pagestream._common.types import Mode, StrPath
from pagestream.devices import constructors, copy_device
from pagestream.devices.planned import CastOf, cast_to, finished, planned
from pagestream.devices.torch_tensors import TorchTensors
from pagestream.devices.transfer import transferred
from pagestream.torch._joining import joined
from pagestream.torch._meeting import Meeting
from pagestream.weights import streaming
from pagestream.weights.checkpoint import Checkpoint, native_files, open_checkpoint, opened
from pagestream.weights.plan import Plan
from pagestream.weights.streaming import Strategy, StreamOrder, TensorStream, Wanted


class _Options(TypedDict):
    memory_bytes: int | None
    threads: int | None


__all__ = ["load_state_dict", "stream_checkpoint"]


@set_module("pagestream.torch")
@advises("torch.load_state_dict")
def load_state_dict(
    path: StrPath | Iterable[StrPath] | Checkpoint,
    device: torch.device | str | int = "cpu",
    *,
    mmap_mode: Mode | None = None,
    dtype: AnyDtype | None = None,
    plan: Plan = None,
    process_group: dist.ProcessGroup | None = None,
) -> dict[str, torch.Tensor]:
    """Loads a checkpoint as a dict of tensors.

    On the CPU, files in the page cache or on storage without delay are mapped, not copied. As in
    `pagestream.safetensors.torch.load_file`, their tensors are views of copy-on-write pages: writing to a
    tensor does not change the file. Other files are read into memory with many reads in flight, and their
    tensors own their memory. If this would take more than half of the available memory, or if several
    processes of one job share the node, such files are read into the page cache and mapped instead. For
    other devices, see `stream_checkpoint`.

    Args:
        path: A file, a folder, an index, a list of files, or the id of a Hugging Face repository that was
            downloaded; see `open_checkpoint`. To set options such as
            ``cache_root`` or ``strict=False``, pass an open `Checkpoint` instead; it stays open. Its ``raw``
            option affects NumPy arrays only.
        device: The device for the tensors.
        mmap_mode: How to open the files; see `MappedFile`. None means ``PAGESTREAM_MMAP_MODE`` or ``"auto"``.
            For an open `Checkpoint` it must be None.
        dtype: Type of the floating-point tensors; see `stream_checkpoint`.
        plan: Which tensors to load, and which parts of them; see `Checkpoint.stream`.
        process_group: Ranks that load at the same time and share the reads; see `stream_checkpoint`. All
            tensors then own their memory.

    Returns:
        The tensors by name, in the order of the files.

    Raises:
        OSError: A file cannot be opened; with ``errno`` and ``filename``.
        SafetensorError: The checkpoint is not valid, or has a type that torch lacks.
        ValueError: `device` is not available; or `dtype` is not a floating-point type; or `path` is a closed
            `Checkpoint`; or `mmap_mode` is given with an open `Checkpoint`.
        KeyError: The checkpoint lacks a name in the plan.
        MappedReadError: A file was truncated, or its storage failed.
        FileChangedError: A file was rewritten during the load.
        RankError: Another rank of `process_group` has failed.
        TimeoutError: Another rank of `process_group` has not begun within the group's time-out.
        RuntimeError: Another load of this process uses `process_group`.

    Examples:
        >>> import torch
        >>> from pagestream.torch import load_state_dict
        >>> tensors = load_state_dict("model.safetensors", dtype=torch.bfloat16)
        >>> tensors["bias"]
        tensor([0., 0., 0.], dtype=torch.bfloat16)
        >>> list(load_state_dict("model.safetensors", plan=["weight"]))
        ['weight']
    """
    with joined(process_group) as meeting, opened(path, mmap_mode) as weights:
        cast_of, where = cast_to(dtype), usable(device)
        wanted = planned(weights, plan, "file")
        pairs = tensors_on(where, weights, wanted, cast_of=cast_of, meeting=meeting)
        made = {each.info.name: tensor for each, tensor in pairs}
        return {each.info.name: made[each.info.name] for each in wanted}  # shared reads have another order


@set_module("pagestream.torch")
@advises("torch.stream_checkpoint")
def stream_checkpoint(
    path: StrPath | Iterable[StrPath] | Checkpoint,
    *,
    device: torch.device | str | int,
    plan: Plan = None,
    dtype: AnyDtype | None = None,
    strategy: Strategy = "auto",
    memory_bytes: int | None = None,
    order: StreamOrder = "file",
    process_group: dist.ProcessGroup | None = None,
    copy: bool = False,
    progress: Progress = False,
) -> TensorStream[torch.Tensor]:
    """Streams the tensors of a checkpoint to a device as their bytes arrive.

    For a GPU, threads read into page-locked memory of a fixed size, and a separate CUDA stream copies
    finished tensors from there to the GPU. The caller can use a tensor at once: its current CUDA stream waits
    for the copy, its thread does not. Tensors larger than the page-locked memory are copied in pieces.
    Neighbouring tensors smaller than 1 MiB are copied together and share memory on the GPU. The mapping of a
    file is never passed to a GPU: its driver would hold locks while it waits for storage.

    If the device works in host memory (integrated and Apple GPUs), no memory is page-locked, and tensors are
    copied one at a time from where they were read. For the CPU, nothing is copied.

    Args:
        path: A file, a folder, an index, a list of files, or the id of a Hugging Face repository that was
            downloaded; see `open_checkpoint`. To set options such as
            ``cache_root`` or ``strict=False``, pass an open `Checkpoint` instead; it stays open. Its ``raw``
            option affects NumPy arrays only.
        device: The device for the tensors: ``"cpu"``, a CUDA GPU, or ``"mps"``.
        plan: Which tensors to stream, and which parts of them; see `Checkpoint.stream`.
        dtype: Type, or its name such as ``"bfloat16"``, for tensors stored as float16, bfloat16, float32 or
            float64. Integers, bools and complex numbers keep their type, and so do floats of 8 bits or less,
            because they need their scales.
            Tensors are cast one at a time, on the GPU if they are for a GPU. None keeps the files' types.
        strategy: On the CPU, as in `Checkpoint.stream`; views are tensors on copy-on-write pages. For other
            devices, all bytes are read into memory by ``"pread"`` or ``"direct"``, and ``"mapped"`` and
            ``"ahead"`` raise an error.
        memory_bytes: Limit on the bytes that are read ahead and not yet used; see `Checkpoint.stream`. For a
            GPU, the size of the page-locked memory: at least 4 MiB, and by default 64 MiB for files in the
            page cache and 128 MiB for other files.
        order: The order of the tensors: ``"file"``, ``"plan"`` or ``"layer"``; see `Checkpoint.stream`.
        process_group: A process group of ``torch.distributed`` (torch 2.8 or newer) whose ranks share the
            reads. None means that this process reads all its tensors itself.

            All ranks must call this function, each with its own path or `Checkpoint` and its own plan.
            Tensors with the same name must have the same type, shape and bytes on all ranks. If several ranks
            need the same bytes, one of them reads the bytes and sends them to the rest with
            ``torch.distributed.all_to_all_single``, in rounds. The exchange uses host memory if the group
            supports it, and tensors are then copied to the device one by one. If all ranks have their files
            in the page cache or on storage without delay, each rank reads for itself, in its own order.

            With shared reads, tensors come in rank 0's order, as fast as the slowest rank consumes them. A
            rank gets its last tensor when no other rank needs data from it. A part with a step in its last
            dimension, for example ``[:, ::2]``, is read, sent and held with the elements in between.

            Ranks wait for a slow rank without a time-out. They wait for a rank that has not begun up to the
            group's time-out. If a rank fails, is killed, ends, or leaves the iterator before its last tensor,
            all ranks raise. A group can run one load at a time.
        copy: Whether tensors must own their memory even on the CPU. A tensor on copy-on-write pages reflects
            later changes to its file: if the file is truncated or rewritten, the tensor's bytes change.
        progress: True for a progress bar (on rank 0 only), or a callable that gets (bytes done, total bytes).

    Returns:
        An iterator over names and tensors, whose ``len`` is the number of tensors in the plan. If it is
        closed or raises an exception, it first ends all reads and copies, and unlocks its memory.

    Raises:
        OSError: A file cannot be opened; with ``errno`` and ``filename``.
        SafetensorError: The checkpoint is not valid, or has a type that torch lacks.
        ValueError: `device` is not available; `dtype` is not a floating-point type; an option is invalid;
            ``"mapped"`` or ``"ahead"`` is given for a GPU or a process group, or is not possible for the
            files; or `path` is a closed `Checkpoint`.
        KeyError: The checkpoint lacks a name in the plan.
        MappedReadError: A file was truncated, or its storage failed, while it was streamed.
        FileChangedError: A file was rewritten while it was streamed.
        RankError: Another rank of `process_group` has failed.
        TimeoutError: Another rank of `process_group` has not begun within the group's time-out.
        RuntimeError: Another load of this process uses `process_group`.

    Examples:
        >>> from pagestream.torch import stream_checkpoint
        >>> for name, tensor in stream_checkpoint("model.safetensors", device="cpu"):
        ...     print(name, tensor.dtype, tuple(tensor.shape))
        weight torch.float64 (2, 3)
        bias torch.float32 (3,)
    """
    with joined(process_group) as meeting:
        weights = path if isinstance(path, Checkpoint) else open_checkpoint(path)
        cast_of, where = cast_to(dtype), usable(device)
        copies = checks.check_bool("copy", copy)
        wanted = planned(weights, plan, order)
        pairs = tensors_on(
            where,
            weights,
            wanted,
            strategy=strategy,
            memory_bytes=memory_bytes,
            cast_of=cast_of,
            meeting=meeting,
            copies=copies,
        )
        return streaming.reported(pairs, wanted, progress)


def usable(device: torch.device | str | int) -> torch.device:
    """Returns the device.

    Raises:
        ValueError: PyTorch has no such device here, or tensors cannot be streamed to it.
    """
    try:
        found = torch.device(device)
    except (RuntimeError, TypeError, ValueError) as error:
        message = f"device {device!r} is invalid: {error}"
        raise ValueError(message) from error
    if constructors.makes_fakes():
        return found
    copy_device.check_available(found, ("cpu", "cuda", "mps"))
    return found


def tensors_on(
    device: torch.device,
    weights: Checkpoint,
    wanted: list[Wanted],
    *,
    cast_of: CastOf,
    strategy: Strategy = "auto",
    memory_bytes: int | None = None,
    threads: int | None = None,
    meeting: Meeting | None = None,
    may_view: bool = False,
    copies: bool = False,
) -> Generator[tuple[Wanted, torch.Tensor], None, None]:
    """Returns an iterator over the tensors of a plan, on a device. It checks the arguments at once.

    With `meeting`, the ranks share the reads. If each rank reads for itself instead, tensors are views only
    with `may_view`. With `copies`, every tensor owns its memory.

    Raises:
        ValueError: The strategy is not possible, or a number is out of range.
    """
    files, memory_bytes = native_files(weights), environment.memory_bytes(memory_bytes)
    threads = environment.threads(threads)
    if constructors.makes_fakes():
        return _fake(device, files, wanted, cast_of, meeting)
    tensors, staged_for = TorchTensors(copies=copies), copy_device.staged_for(device)
    is_cpu = staged_for is None and device.type == "cpu"
    if strategy in ("mapped", "ahead") and not is_cpu:
        message = f'strategy="{strategy}" is for the CPU: pages of a file must not be copied to {device}'
        raise ValueError(message)
    if meeting is not None:
        if strategy in ("mapped", "ahead"):
            message = (
                f'strategy="{strategy}" yields views of files; with process_group bytes are read and sent'
            )
            raise ValueError(message)
        from pagestream.torch._exchange import together

        options: _Options = {"memory_bytes": memory_bytes, "threads": threads}
        # With a group, tensors own their memory even if each rank reads for itself. `may_view` is for callers
        # that copy each tensor at once.
        own = strategy if may_view else "pread"
        alone = partial(tensors_on, device, weights, wanted, cast_of=cast_of, strategy=own, **options)
        shared = partial(together, meeting, files, wanted, strategy, cast_of, device, **options)
        return _of_ranks(meeting, weights, wanted, strategy, alone, shared)
    is_limited = memory_bytes is not None or threads is not None
    means, _ = streaming.chosen(files, wanted if is_cpu else [], strategy, is_limited=is_limited)
    # Never copy to a device from a mapping.
    means = means if is_cpu or means == "direct" else "pread"
    if staged_for is not None:
        return transferred(files, wanted, staged_for, cast_of, memory_bytes, threads, means)
    view = partial(_on_file, files, tensors)
    pairs = streaming.tensors(
        files, wanted, means, tensors, view, memory_bytes, threads, checks=None, drop_behind=False
    )
    return _moved(pairs, device, cast_of)


def _fake(
    device: torch.device,
    files: _native.Checkpoint,
    wanted: list[Wanted],
    cast_of: CastOf,
    meeting: Meeting | None,
) -> Generator[tuple[Wanted, torch.Tensor], None, None]:
    """Returns an iterator over fake tensors. They are created like views, so nothing is read ahead.

    Raises:
        ValueError: A meeting is given: there are no reads to share.
    """
    if meeting is not None:
        message = "process_group: under a FakeTensorMode there are no reads to share; leave it out"
        raise ValueError(message)
    # If the mode ends before the iterator, the tensors are real. Copy them: a mapping is not for a device.
    view = partial(_on_file, files, TorchTensors(copies=True))
    pairs = streaming.tensors(
        files, wanted, "mapped", TorchTensors(), view, None, None, checks=None, drop_behind=False
    )
    return _moved(pairs, device, cast_of)


def _of_ranks(
    meeting: Meeting,
    weights: Checkpoint,
    wanted: list[Wanted],
    strategy: Strategy,
    alone: Callable[[], Generator[tuple[Wanted, torch.Tensor], None, None]],
    shared: Callable[[], Generator[tuple[Wanted, torch.Tensor], None, None]],
) -> Generator[tuple[Wanted, torch.Tensor], None, None]:
    """Yields the tensors of this rank. Ranks share reads unless all have their files at hand.

    Raises:
        RankError: Another rank has failed.
    """
    with meeting:
        means, _ = streaming.chosen(native_files(weights), wanted, strategy, is_limited=True)
        is_shared = any(each != "mapped" for each in meeting.gather("means", means))
        meeting.connect()
        with closing(shared() if is_shared else alone()) as pairs:
            missing = len(wanted)
            for each, tensor in pairs:
                missing -= 1
                # A consumer may leave after its last tensor. If it leaves earlier, it may have failed.
                meeting.may_leave = not missing
                yield each, tensor
                del tensor
        weights.check()
        # A failure of any rank or its consumer raises on all ranks.
        meeting.meet()


def _moved(
    pairs: Generator[tuple[Wanted, torch.Tensor], None, None], device: torch.device, cast_of: CastOf
) -> Generator[tuple[Wanted, torch.Tensor], None, None]:
    """Yields the tensors with the requested type, on a device other than a GPU with its own memory."""
    with closing(pairs):
        for each, tensor in pairs:
            made = finished(each, tensor, cast_of)
            if device.type != "cpu":
                made = made.to(device)
            # Free the first of two copies before the consumer works on the second.
            del tensor
            yield each, made
            del made


def _on_file(
    files: _native.Checkpoint, tensors: TorchTensors, file: _native.WeightFile, each: Wanted
) -> torch.Tensor:
    """Returns a tensor over copy-on-write pages of its file."""
    name = files.name_in_file(each.info.name)
    if each.index is ...:
        return tensors.whole(file, name)  # type: ignore[no-any-return]
    return tensors.part(file.stored(name), each.index)

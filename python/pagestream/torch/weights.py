"""Weights as tensors on a device: `load_state_dict`, `stream_checkpoint`."""

from __future__ import annotations

from contextlib import closing
from functools import partial
from typing import TYPE_CHECKING

import torch
import torch.distributed as dist

from pagestream._common import checks, environment
from pagestream.devices import constructors, copy_device
from pagestream.devices.planned import cast_to, finished, planned
from pagestream.devices.torch_tensors import TorchTensors
from pagestream.devices.transfer import transferred
from pagestream.torch._joining import joined
from pagestream.weights import streaming
from pagestream.weights.checkpoint import Checkpoint, native_files, open_checkpoint, opened

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Iterable, Iterator
    from typing import TypedDict

    from pagestream import _native
    from pagestream._common.progress import Progress
    from pagestream._common.types import Mode, StrPath
    from pagestream.devices.planned import CastOf
    from pagestream.torch._meeting import Meeting
    from pagestream.weights.plan import Plan
    from pagestream.weights.streaming import Strategy, StreamOrder, Wanted

    class _Options(TypedDict):
        memory_bytes: int | None
        threads: int | None


__all__ = ["load_state_dict", "stream_checkpoint"]


def load_state_dict(
    path: StrPath | Iterable[StrPath] | Checkpoint,
    device: torch.device | str | int = "cpu",
    *,
    mmap_mode: Mode | None = None,
    dtype: torch.dtype | None = None,
    plan: Plan = None,
    process_group: dist.ProcessGroup | None = None,
) -> dict[str, torch.Tensor]:
    """Loads a checkpoint as a dict of tensors.

    On the CPU, tensors of files that are in the page cache, or on storage that answers at once, are not
    copied: they lie on copy-on-write pages of the file, as those of
    `pagestream.safetensors.torch.load_file` do. Writing to them changes the tensor, not the file. Other
    files are read, many reads at a time, and their tensors own their memory; where that would take more than
    half of what is available, or processes of one job share the node, they are read into the page cache
    instead. `stream_checkpoint` says how tensors get to other devices.

    Args:
        path: A file, a folder, an index or a list of files; see `open_checkpoint`. Or an open `Checkpoint`,
            made with options of its own such as ``cache_root`` and ``strict=False``, which stays open. Its
            ``raw`` counts for NumPy arrays only.
        device: Where the tensors go.
        mmap_mode: How to open the files; see `MappedFile`. None means ``PAGESTREAM_MMAP_MODE`` or ``"auto"``.
            For an open `Checkpoint` it must be None.
        dtype: Type of the floating-point tensors; see `stream_checkpoint`.
        plan: Which tensors to load, and which parts of them; see `Checkpoint.stream`.
        process_group: Ranks that load at the same time and share the reads; see `stream_checkpoint`. Then
            all tensors own their memory.

    Returns:
        The tensors, in the order of the files.

    Raises:
        OSError: A file cannot be opened; with ``errno`` and ``filename``.
        SafetensorError: Not a valid checkpoint, or a type that torch does not have.
        ValueError: `device` is no such device; `dtype` is no floating-point type; `path` is a `Checkpoint`
            that is closed, or `mmap_mode` is given with one.
        KeyError: The plan has a name that is not there.
        MappedReadError: A file was cut or its storage failed.
        FileChangedError: A file was rewritten meanwhile.

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
        return {each.info.name: made[each.info.name] for each in wanted}  # ranks have another order


def stream_checkpoint(
    path: StrPath | Iterable[StrPath] | Checkpoint,
    *,
    device: torch.device | str | int,
    plan: Plan = None,
    dtype: torch.dtype | None = None,
    strategy: Strategy = "auto",
    memory_bytes: int | None = None,
    order: StreamOrder = "file",
    process_group: dist.ProcessGroup | None = None,
    copy: bool = False,
    progress: Progress = False,
) -> Iterator[tuple[str, torch.Tensor]]:
    """Streams the tensors of a checkpoint to a device, as their bytes arrive.

    For a GPU, threads read into page-locked memory of a fixed size, from where copies run on a separate
    stream while others are read. A tensor can be used at once: the caller's current stream waits for its
    copy, the caller does not. Tensors that are larger than that memory cross in pieces; neighbours in a file
    that are smaller than 1 MiB cross together, and share memory on the device. The mapping of a file is
    never handed to a device, whose driver would wait for storage with its locks held.

    Where the device works in the host's memory (integrated and Apple GPUs), nothing is page-locked, and each
    tensor is copied from where it was read, one at a time. For the CPU nothing is copied.

    Args:
        path: A file, a folder, an index or a list of files; see `open_checkpoint`. Or an open `Checkpoint`,
            made with options of its own such as ``cache_root`` and ``strict=False``, which stays open. Its
            ``raw`` counts for NumPy arrays only.
        device: Where the tensors go: ``"cpu"``, a GPU of CUDA, or ``"mps"``.
        plan: Which tensors to stream, and which parts of them; see `Checkpoint.stream`.
        dtype: Type of the tensors that the files hold as float16, bfloat16, float32 or float64. Integers,
            bools and complex numbers keep their type, and so do floats of 8 bits and less, which need their
            scales. Tensors are cast one at a time, those for a GPU on the GPU. None for the files' types.
        strategy: For the CPU as in `Checkpoint.stream`, with tensors on copy-on-write pages for views. For
            other devices all is read into memory, by ``"pread"`` or ``"direct"``: ``"mapped"`` and
            ``"ahead"`` are refused.
        memory_bytes: Bytes that are read ahead and not yet used; see `Checkpoint.stream`. For a GPU, the
            size of the page-locked memory: at least 4 MiB; by default 64 MiB for files in the page cache, and
            128 MiB for others.
        order: The order of the tensors: ``"file"``, ``"plan"`` or ``"layer"``; see `Checkpoint.stream`.
        process_group: Ranks of ``torch.distributed`` (torch 2.8 or newer) that all call this, each with a
            path or `Checkpoint` and a plan of its own, and share the reads. Tensors of one name must have the
            same type, shape and bytes on all ranks. Each byte that any of them wants is read by one of those
            that want it, and sent to the others (``torch.distributed.all_to_all_single``, in rounds), in the
            host's memory if the group can, and from there to the device tensor by tensor. Tensors come in
            the order of rank 0, and the last one of a rank once no other rank needs it; those of which ranks
            share the bytes come as fast as the slowest consumer takes them. Where all ranks have their files
            in the page cache, or on storage that answers at once, each reads for itself, in its own order.
            Ranks that are slow make the others wait without a time-out, and those that have not begun for as
            long as the group's own time-out. One that fails, is killed, ends, or leaves the iterator before
            its last tensor makes all raise. Of a part with steps in its last dimension all elements in
            between are read, sent and held. A group has one load at a time. None reads all that this process
            wants.
        copy: True for tensors that own their memory, also on the CPU. A tensor on copy-on-write pages shows
            what becomes of its file: if that is cut or rewritten later, the tensor's bytes change.
        progress: True for a bar, on rank 0 alone, or a callable that gets (bytes done, bytes in all).

    Yields:
        Name and tensor. A generator that is closed, or left by an exception, ends reads and copies and
        unlocks its memory first.

    Raises:
        OSError: A file cannot be opened; with ``errno`` and ``filename``.
        SafetensorError: Not a valid checkpoint, or a type that torch does not have.
        ValueError: `device` is no such device; `dtype` is no floating-point type; a word or number is wrong;
            ``"mapped"`` or ``"ahead"`` for a device, or where that is not possible; `path` is a `Checkpoint`
            that is closed.
        KeyError: The plan has a name that is not there.
        MappedReadError: A file was cut or its storage failed; while it is streamed.
        FileChangedError: A file was rewritten meanwhile; while it is streamed.
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
    is_there = {"cpu": True, "mps": torch.backends.mps.is_available()}
    is_there["cuda"] = (found.index or 0) < torch.cuda.device_count()
    if not is_there.get(found.type, False):
        message = f'device must be "cpu", or "cuda" or "mps" where PyTorch finds such a GPU, not \'{found}\''
        raise ValueError(message)
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
    """Returns an iterator over the tensors of a plan, on a device. The arguments are checked at once.

    With `meeting` its ranks share the reads. Where each reads for itself, tensors are views only if
    `may_view`. With `copies` none is.

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
        # What ranks get is memory of their own, however it comes, unless it is copied at once.
        own = strategy if may_view else "pread"
        alone = partial(tensors_on, device, weights, wanted, cast_of=cast_of, strategy=own, **options)
        shared = partial(together, meeting, files, wanted, strategy, cast_of, device, **options)
        return _of_ranks(meeting, weights, wanted, strategy, alone, shared)
    is_limited = memory_bytes is not None or threads is not None
    means, _ = streaming.chosen(files, wanted if is_cpu else [], strategy, is_limited=is_limited)
    # A copy to a device never begins in a mapping.
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
    """Returns an iterator over fake tensors, which are made as views are: nothing is read ahead.

    Raises:
        ValueError: Ranks share the reads.
    """
    if meeting is not None:
        message = (
            "process_group: under a FakeTensorMode no bytes are read that ranks could share; leave it out"
        )
        raise ValueError(message)
    # Copies, in case the mode ends before the iterator: a mapping is not for a device.
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
    """Yields what each rank reads for itself, if all have it at hand, or else what they share."""
    with meeting:
        means, _ = streaming.chosen(native_files(weights), wanted, strategy, is_limited=True)
        is_shared = any(each != "mapped" for each in meeting.gather("means", means))
        with closing(shared() if is_shared else alone()) as pairs:
            missing = len(wanted)
            for each, tensor in pairs:
                missing -= 1
                # A consumer may leave with its last tensor. One that leaves before may have failed.
                meeting.may_leave = not missing
                yield each, tensor
                del tensor
        weights.check()
        # What fails in one rank, or in its consumer, fails in all.
        meeting.meet()


def _moved(
    pairs: Generator[tuple[Wanted, torch.Tensor], None, None], device: torch.device, cast_of: CastOf
) -> Generator[tuple[Wanted, torch.Tensor], None, None]:
    """Yields tensors of the right type, and on a device that shares the host's memory."""
    with closing(pairs):
        for each, tensor in pairs:
            made = finished(each, tensor, cast_of).to(device)
            # Of two copies the first is not kept while the consumer works.
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

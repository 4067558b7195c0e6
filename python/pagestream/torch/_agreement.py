"""What the ranks of a process group want together, and whether their checkpoints are one.

Ranks can have their files from mounts and folders of their own. Names, types and shapes have to be the same.
Files of one size and one time of modification count as the same; where these differ, as those of copies do,
the ranks compare bytes from the middle of each tensor that several of them want.
"""

from __future__ import annotations

import hashlib
import json
import os
from contextlib import closing
from typing import TYPE_CHECKING, Any, TypeAlias

from pagestream.torch._shares import Request, SharedTensor
from pagestream.weights import arrays, indexing, streaming

if TYPE_CHECKING:
    from collections.abc import Generator

    import numpy as np

    from pagestream import _native
    from pagestream.torch._meeting import Meeting
    from pagestream.torch._shares import Box
    from pagestream.weights.streaming import Wanted
    from pagestream.weights.tensor_info import TensorInfo

    _Bytes: TypeAlias = np.ndarray[Any, np.dtype[np.uint8]]

_SAMPLE_BYTES = 4096


def agreed(
    meeting: Meeting,
    files: _native.Checkpoint,
    wanted: list[Wanted],
    boxes: list[tuple[tuple[int, ...], Box]],
) -> tuple[list[SharedTensor], list[tuple[int, int]]]:
    """Returns what all ranks want, and the numbers of tensor and request of each tensor of this rank.

    Args:
        meeting: The ranks.
        files: The files of this rank.
        wanted: The plan of this rank.
        boxes: Of each tensor of the plan its shape and what is wanted of it, in bytes.

    Raises:
        ValueError: Ranks have different checkpoints.
        OSError: A file is gone.
    """
    plan = [[each.info.name, each.info.dtype, *box] for each, box in zip(wanted, boxes, strict=True)]
    plans = _parsed(meeting.gather("plan", json.dumps(plan)))
    numbers: dict[str, int] = {}
    facts: list[tuple[str, list[int]]] = []
    requests: list[list[Request]] = []
    own: list[tuple[int, int]] = []
    for rank, rows in enumerate(plans):
        for name, dtype, shape, box in rows:
            number = numbers.setdefault(name, len(numbers))
            if number == len(facts):
                facts.append((dtype, shape))
                requests.append([])
            elif facts[number] != (dtype, shape):
                message = (
                    f"rank {rank} has another checkpoint than ranks before it: there {name!r} has {dtype} "
                    f"elements in {shape} bytes, here {facts[number][0]} in {facts[number][1]}"
                )
                raise ValueError(message)
            if rank == meeting.rank:
                own.append((number, len(requests[number])))
            requests[number].append(Request(rank, tuple((start, end) for start, end in box)))
    _check_files(meeting, files, wanted, plans)
    tensors = [
        SharedTensor(tuple(shape), tuple(of_tensor))
        for (_, shape), of_tensor in zip(facts, requests, strict=True)
    ]
    return tensors, own


def read_of(info: TensorInfo, shape: tuple[int, ...], box: Box) -> Wanted:
    """Returns what a box of a tensor is read as: bytes. `shape` is that of the tensor in bytes."""
    index = tuple(slice(start, end) for start, end in box)
    return streaming.Wanted(info, index, "U8", shape, indexing.select(shape, index))


def bytes_of(
    files: _native.Checkpoint,
    reads: list[Wanted],
    strategy: str,
    memory_bytes: int | None,
    threads: int | None,
) -> Generator[tuple[Wanted, _Bytes], None, None]:
    """Yields what boxes of tensors hold."""
    raw = arrays.NumpyArrays(raw=True)
    return streaming.tensors(
        files, reads, strategy, raw, _no_view, memory_bytes, threads, checks=None, drop_behind=False
    )


def _no_view(_file: _native.WeightFile, each: Wanted) -> None:
    raise AssertionError(each)


def _parsed(said: list[str]) -> list[Any]:
    """Returns what ranks have said. What many of them said is parsed once."""
    values = {payload: json.loads(payload) for payload in set(said)}
    return [values[payload] for payload in said]


def _check_files(
    meeting: Meeting, files: _native.Checkpoint, wanted: list[Wanted], plans: list[list[Any]]
) -> None:
    """Checks that tensors that several ranks want are the same in the files of each.

    Raises:
        ValueError: One is not.
        OSError: A file is gone.
    """
    stamp_of = {path: _stamp(path) for path in {each.info.path for each in wanted}}
    stamps = _parsed(meeting.gather("stamps", json.dumps([stamp_of[each.info.path] for each in wanted])))
    names = [[name for name, *_ in rows] for rows in plans]
    stamps_of: dict[str, set[tuple[int, int]]] = {}
    for of_rank, stamps_there in zip(names, stamps, strict=True):
        for name, stamp in zip(of_rank, stamps_there, strict=True):
            stamps_of.setdefault(name, set()).add(tuple(stamp))
    doubtful = {name for name, found in stamps_of.items() if len(found) > 1}
    if not doubtful:
        return
    samples = {each.info.name: _sample(each.info) for each in wanted if each.info.name in doubtful}
    own: dict[str, str] = {}
    with closing(bytes_of(files, list(samples.values()), "pread", None, None)) as reading:
        for each, data in reading:
            own[each.info.name] = hashlib.blake2b(data.tobytes(), digest_size=16).hexdigest()
    first: dict[str, tuple[int, str]] = {}
    for rank, digests in enumerate(_parsed(meeting.gather("samples", json.dumps(own)))):
        for name, digest in digests.items():
            other, expected = first.setdefault(name, (rank, digest))
            if digest != expected:
                message = f"ranks {other} and {rank} have different checkpoints: {name!r} has other bytes"
                raise ValueError(message)


def _stamp(path: str) -> tuple[int, int]:
    found = os.stat(path)
    return found.st_size, found.st_mtime_ns


def _sample(info: TensorInfo) -> Wanted:
    first = max(0, info.nbytes - _SAMPLE_BYTES) // 2
    return read_of(info, (info.nbytes,), ((first, min(first + _SAMPLE_BYTES, info.nbytes)),))

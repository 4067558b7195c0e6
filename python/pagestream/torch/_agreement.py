"""Merges the plans of all ranks in a process group, and checks that their checkpoints are identical.

Each rank may open the files from its own mount or folder. Tensors with the same name must have the same type
and shape on all ranks. Two files are assumed to be identical if their size and modification time agree. If
these differ, for example between copies on local disks, the ranks compare up to 4 KiB from the middle of each
tensor that several ranks load.
"""

from __future__ import annotations

import hashlib
import json
import os
from contextlib import closing
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np

from pagestream.torch._shares import Request, SharedTensor
from pagestream.weights import arrays, indexing, streaming

if TYPE_CHECKING:
    from collections.abc import Generator

    from pagestream import _native
    from pagestream.torch._meeting import Meeting
    from pagestream.torch._shares import Box
    from pagestream.weights.streaming import Wanted
    from pagestream.weights.tensor_info import TensorInfo

    _Bytes: TypeAlias = np.ndarray[Any, np.dtype[np.uint8]]
    _Integers: TypeAlias = np.ndarray[tuple[int], np.dtype[np.intp]]
    _Numbers: TypeAlias = np.ndarray[tuple[int], np.dtype[np.int32]]

_SAMPLE_BYTES = 4096


@dataclass(frozen=True, slots=True)
class Agreement:
    """The merged plans of all ranks.

    Tensors of equal shape that the same ranks request in the same boxes are one kind. For example, the query
    weights of all layers are usually one kind.

    Attributes:
        kinds: One shared tensor per kind.
        kind_of: For each requested tensor, the index of its kind.
        own: For each entry of this rank's plan, the index of its tensor in `kind_of`, and the index of its
            request within that kind.
    """

    kinds: list[SharedTensor]
    kind_of: list[int]
    own: list[tuple[int, int]]


@dataclass(frozen=True, slots=True)
class _Catalog:
    """The names in a plan.

    Attributes:
        numbers: For each name, the index of its tensor.
        repeats: For each name, the number of earlier entries in the plan with the same name.
    """

    numbers: _Integers
    repeats: _Integers


def agreed(
    meeting: Meeting,
    files: _native.Checkpoint,
    wanted: list[Wanted],
    boxes: list[tuple[tuple[int, ...], Box]],
) -> Agreement:
    """Merges the plans of all ranks.

    Args:
        meeting: The ranks.
        files: The files of this rank.
        wanted: The plan of this rank.
        boxes: For each entry of the plan, the tensor's shape and the requested box, both in bytes.

    Returns:
        The merged plans.

    Raises:
        ValueError: Ranks have different checkpoints.
        OSError: A file is missing.
    """
    # Most ranks request the same tensors, and differ only in their boxes. The names therefore travel in a
    # message of their own: `gather` sends equal messages once, and `_parsed` parses them once.
    named, wants = told(files, wanted, boxes)
    rows, wants_of = _parsed(meeting.gather("tensors", named)), _parsed(meeting.gather("wants", wants))
    catalogs, facts = _numbered(rows)
    _check_files(meeting, files, wanted, _doubtful(rows, [each["stamps"] for each in wants_of]))
    shapes: dict[tuple[int, ...], int] = {}
    table = [np.array([shapes.setdefault(shape, len(shapes)) for _, shape in facts], np.int32)]
    columns: list[int] = []
    places: dict[Box, int] = {}
    own: list[tuple[int, int]] = []
    for rank, (catalog, of_rank) in enumerate(zip(catalogs, wants_of, strict=True)):
        found = [tuple(range(*places) for places in box) for box in of_rank["boxes"]]
        places_of = np.array([places.setdefault(box, len(places)) for box in found], np.int32)
        wanted_of = places_of[np.array(of_rank["box_of"], np.intp)]
        members = np.zeros(len(wanted), np.intp)
        for repeat in range(catalog.repeats.max(initial=-1) + 1):
            chosen = catalog.repeats == repeat
            numbers = catalog.numbers[chosen]
            if rank == meeting.rank:
                members[chosen] = sum((column[numbers] >= 0 for column in table[1:]), np.zeros_like(numbers))
            columns.append(rank)
            table.append(np.full(len(facts), -1, np.int32))
            table[-1][numbers] = wanted_of[chosen]
        if rank == meeting.rank:
            own = list(zip(catalog.numbers.tolist(), members.tolist(), strict=True))
    kinds, kind_of = _kinds(table, columns, list(shapes), list(places))
    return Agreement(kinds, kind_of, own)


def _kinds(
    table: list[_Numbers], columns: list[int], shapes: list[tuple[int, ...]], boxes: list[Box]
) -> tuple[list[SharedTensor], list[int]]:
    """Returns the distinct rows of a table as tensors, and for each row the index of its tensor.

    The first column is the index of the shape. Each further column belongs to a rank: it is the index of the
    requested box, or -1 if the rank does not request the tensor.
    """
    numbers_of: dict[bytes, int] = {}
    kind_of = [numbers_of.setdefault(row.tobytes(), len(numbers_of)) for row in np.stack(table, axis=1)]
    kinds = []
    for row in numbers_of:
        shape, *of_columns = np.frombuffer(row, np.int32).tolist()
        requests = [
            Request(rank, boxes[box]) for rank, box in zip(columns, of_columns, strict=True) if box >= 0
        ]
        kinds.append(SharedTensor(shapes[shape], tuple(requests)))
    return kinds, kind_of


def told(
    files: _native.Checkpoint, wanted: list[Wanted], boxes: list[tuple[tuple[int, ...], Box]]
) -> tuple[str, str]:
    """Returns this rank's two messages: the tensors in its plan, and the box that it requests of each.

    Raises:
        OSError: A file is missing.
    """
    paths: dict[str, int] = {}
    places: dict[Box, int] = {}
    named = [
        [each.info.name, each.info.dtype, shape, paths.setdefault(each.info.path, len(paths))]
        for each, (shape, _) in zip(wanted, boxes, strict=True)
    ]
    box_of = [places.setdefault(box, len(places)) for _, box in boxes]
    told_boxes = [[(each.start, each.stop, each.step) for each in box] for box in places]
    # The current directory may have changed since the files were opened.
    absolute = dict(zip(files.paths, files.absolute_paths, strict=True))
    wants = {"stamps": [_stamp(absolute[path]) for path in paths], "boxes": told_boxes, "box_of": box_of}
    return json.dumps(named), json.dumps(wants)


def _numbered(rows: list[list[Any]]) -> tuple[list[_Catalog], list[tuple[str, tuple[int, ...]]]]:
    """Returns the catalog of each rank, and the type and shape of each tensor.

    Raises:
        ValueError: Two ranks disagree on the type or shape of a tensor.
    """
    numbers: dict[str, int] = {}
    facts: list[tuple[str, tuple[int, ...]]] = []
    catalogs: dict[int, _Catalog] = {}
    for rank, of_rank in enumerate(rows):
        if id(of_rank) in catalogs:
            continue
        found: list[int] = []
        repeats: list[int] = []
        often: dict[int, int] = {}
        for name, dtype, lengths, _ in of_rank:
            shape = tuple(lengths)
            number = numbers.setdefault(name, len(numbers))
            if number == len(facts):
                facts.append((dtype, shape))
            elif facts[number] != (dtype, shape):
                known_dtype, known_shape = facts[number]
                message = (
                    f"rank {rank} has a different checkpoint than the ranks before it: its {name!r} is "
                    f"{dtype} of {_size(shape)}, theirs is {known_dtype} of {_size(known_shape)}; load "
                    "the same checkpoint on all ranks"
                )
                raise ValueError(message)
            found.append(number)
            repeats.append(often.get(number, 0))
            often[number] = repeats[-1] + 1
        catalogs[id(of_rank)] = _Catalog(np.array(found, np.intp), np.array(repeats, np.intp))
    return [catalogs[id(of_rank)] for of_rank in rows], facts


def _size(shape: tuple[int, ...]) -> str:
    """Returns the size of a tensor whose last dimension counts bytes."""
    return f"{' x '.join(map(str, shape))} bytes"


def read_of(info: TensorInfo, shape: tuple[int, ...], box: Box) -> Wanted:
    """Returns a plan entry that reads a box of a tensor as bytes. `shape` is the tensor's shape in bytes."""
    index = tuple(slice(places.start, places.stop, places.step) for places in box)
    return streaming.Wanted(info, index, "U8", shape, indexing.select(shape, index))


def bytes_of(
    files: _native.Checkpoint,
    reads: list[Wanted],
    strategy: str,
    memory_bytes: int | None,
    threads: int | None,
) -> Generator[tuple[Wanted, _Bytes], None, None]:
    """Yields the bytes of boxes of tensors."""
    raw = arrays.NumpyArrays(raw=True)
    return streaming.tensors(
        files, reads, strategy, raw, _no_view, memory_bytes, threads, checks=None, drop_behind=False
    )


def _no_view(_file: _native.WeightFile, each: Wanted) -> None:
    raise AssertionError(each)


def _parsed(said: list[str]) -> list[Any]:
    """Returns the parsed message of each rank. Equal messages share one value, and are parsed once."""
    values = {payload: json.loads(payload) for payload in set(said)}
    return [values[payload] for payload in said]


def _doubtful(rows: list[list[Any]], stamps_of: list[list[list[int]]]) -> set[str]:
    """Returns the names of tensors whose files differ between ranks in size or modification time."""
    first: dict[str, list[int]] = {}
    doubtful: set[str] = set()
    seen: set[tuple[int, str]] = set()
    for of_rank, stamps in zip(rows, stamps_of, strict=True):
        if (same := (id(of_rank), str(stamps))) in seen:
            continue
        seen.add(same)
        for name, _, _, file in of_rank:
            if first.setdefault(name, stamps[file]) != stamps[file]:
                doubtful.add(name)
    return doubtful


def _check_files(
    meeting: Meeting, files: _native.Checkpoint, wanted: list[Wanted], doubtful: set[str]
) -> None:
    """Checks that tensors are equal on all ranks even though their files differ in size or time.

    Raises:
        ValueError: The sampled bytes of a tensor differ between two ranks.
        OSError: A file is missing.
    """
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
                message = f"ranks {other} and {rank} have different checkpoints: {name!r} has different bytes"
                raise ValueError(message)


def _stamp(path: str) -> tuple[int, int]:
    found = os.stat(path)
    return found.st_size, found.st_mtime_ns


def _sample(info: TensorInfo) -> Wanted:
    first = max(0, info.nbytes - _SAMPLE_BYTES) // 2
    return read_of(info, (info.nbytes,), (range(first, min(first + _SAMPLE_BYTES, info.nbytes)),))

"""Holes: ranges of a file without stored bytes. They read as zeros, for example after a partial download."""

from __future__ import annotations

import bisect
import itertools
from typing import TYPE_CHECKING, NamedTuple

from pagestream._common.amounts import count
from pagestream.files.holes import described, holes_of
from pagestream.weights.tensor_info import TensorInfo

if TYPE_CHECKING:
    from collections.abc import Collection

    from pagestream import _native

# On network mounts each file takes a few round trips.
_SIDE_BY_SIDE = 16
# Number of tensors that a warning names.
_NAMED = 3


class _Contents(NamedTuple):
    """The tensors of a file, and the path to open."""

    path: str
    names: list[str]
    start: int
    end: int


def warnings(files: _native.Checkpoint, numbers: Collection[int] | None = None) -> list[str]:
    """Returns a warning for each file with tensors in holes.

    Files on FUSE mounts are skipped: opening a file there again drops its cached pages, unless the daemon
    keeps them. A file that cannot be opened again, or was truncated, is also skipped: its tensors raise.

    Args:
        files: The open files. Closed files have no warnings.
        numbers: The numbers of the files to examine. None means all of them.
    """
    contents: list[_Contents] = []
    is_network = False
    for number, names in itertools.groupby(files.keys(), files.number_of):
        if numbers is not None and number not in numbers:
            continue
        of_file = list(names)
        try:
            system = files.file_of(of_file[0], reads_ahead=False).file_system
        except (OSError, ValueError):
            continue
        if system["type"].startswith(("fuse", "virtiofs")):
            continue
        is_network |= system["is_network"]
        first, last = _info(files, of_file[0]), _info(files, of_file[-1])
        path = files.absolute_paths[number]
        contents.append(_Contents(path, of_file, first.offset, last.offset + last.nbytes))
    if is_network:
        from concurrent.futures import ThreadPoolExecutor

        with ThreadPoolExecutor(_SIDE_BY_SIDE) as pool:
            found = list(pool.map(_holes, contents))
    else:
        found = list(map(_holes, contents))
    made = (
        _warning(holes, [_info(files, name) for name in each.names])
        for each, holes in zip(contents, found, strict=True)
        if holes
    )
    return [warning for warning in made if warning]


def _info(files: _native.Checkpoint, name: str) -> TensorInfo:
    return TensorInfo(*files.info_fields(name))


def _holes(contents: _Contents) -> list[range]:
    return holes_of(contents.path, contents.start, contents.end)


def _warning(holes: list[range], tensors: list[TensorInfo]) -> str | None:
    """Returns the warning about a file, or None if no tensor has bytes in its holes."""
    stops = [hole.stop for hole in holes]

    def is_inside(tensor: TensorInfo) -> bool:
        hole = bisect.bisect_right(stops, tensor.offset)
        return tensor.nbytes > 0 and hole < len(holes) and holes[hole].start < tensor.offset + tensor.nbytes

    inside = [tensor for tensor in tensors if is_inside(tensor)]
    if not inside:
        return None
    named = ", ".join(repr(tensor.name) for tensor in inside[:_NAMED]) + (", ..." if inside[_NAMED:] else "")
    return (
        f"{tensors[0].path}: {described(holes)}, in {count(len(inside), 'tensor')} ({named}). "
        "Download the file again if its download stopped early. Zeros that are stored sparsely are holes, "
        "too: if the file has checksums, pagestream verify compares it"
    )

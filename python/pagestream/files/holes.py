"""Holes in a file: ranges without stored bytes. They read as zeros."""

from __future__ import annotations

import errno
import mmap
import os

from pagestream._common.amounts import count, size

# A file that was written in pieces may have many thousands of holes.
_MOST_HOLES = 64


def holes_of(path: str, start: int, end: int) -> list[range]:
    """Returns the first holes of a file in a range of bytes, at most 64.

    There are none if the file system cannot report holes.
    """
    found: list[range] = []
    try:
        # If a pipe has taken the file's name, do not wait for its writer.
        descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK)
        try:
            while start < end and len(found) < _MOST_HOLES:
                # A file system without support for holes returns the size of the file.
                hole = os.lseek(descriptor, start, os.SEEK_HOLE)
                if hole >= end:
                    break
                start = min(_data(descriptor, hole, end), end)
                found.append(range(hole, start))
            if os.fstat(descriptor).st_size < end:
                # The file was truncated meanwhile.
                return []
        finally:
            os.close(descriptor)
    except OSError:
        return []
    # File systems may store the last bytes of a file outside of a block.
    return [hole for hole in found if len(hole) >= mmap.PAGESIZE or hole.stop < end]


def _data(descriptor: int, offset: int, end: int) -> int:
    """Returns the offset of the next data, or `end` if the rest of the file is a hole."""
    try:
        return os.lseek(descriptor, offset, os.SEEK_DATA)
    except OSError as error:
        if error.errno != errno.ENXIO:
            raise
        return end


def described(holes: list[range]) -> str:
    """Describes the holes of a file in words."""
    least = "at least " if len(holes) == _MOST_HOLES else ""
    return (
        f"{least}{size(sum(map(len, holes)))} in {least}{count(len(holes), 'hole')} read as zeros, "
        f"the first at byte {holes[0].start:,}"
    )

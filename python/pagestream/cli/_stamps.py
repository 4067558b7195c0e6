"""The state of a file. A command that reads a file for minutes compares it with the state at the start."""

from __future__ import annotations

import errno
import os
import time
from contextlib import contextmanager
from typing import TYPE_CHECKING, NamedTuple

from pagestream.errors import FileChangedError

if TYPE_CHECKING:
    from collections.abc import Iterator

_NANOSECONDS = 10**9


class Stamp(NamedTuple):
    """Facts that change when a file is written or replaced.

    Attributes:
        device: The number of the device.
        inode: The number of the file on it.
        size_bytes: The size.
        modified_ns: The time of the last modification.
    """

    device: int
    inode: int
    size_bytes: int
    modified_ns: int

    @classmethod
    def of(cls, found: os.stat_result) -> Stamp:
        """Returns the stamp from the result of a `stat`."""
        return cls(found.st_dev, found.st_ino, found.st_size, found.st_mtime_ns)


def is_current(path: str, stamp: Stamp) -> bool:
    """Returns whether a path still leads to a file with this stamp."""
    try:
        return Stamp.of(os.stat(path)) == stamp
    except OSError:
        return False


def refuse_changed(path: str, stamp: Stamp) -> None:
    """Raises if a file no longer has a stamp.

    Raises:
        FileChangedError: The file was written, replaced or removed.
        OSError: The path cannot be followed.
    """
    try:
        now = Stamp.of(os.stat(path))
    except FileNotFoundError:
        changes = ["it was removed"]
    else:
        changes = list(_changes(stamp, now))
    if changes:
        message = (
            f"the file changed during the run: {', '.join(changes)}; run the same command again when no "
            "program writes to the file"
        )
        raise FileChangedError(errno.ESTALE, message, path)


def _changes(before: Stamp, now: Stamp) -> Iterator[str]:
    """Yields the difference for each fact that changed."""
    if now.device != before.device:
        yield f"found device {_device(now)}, expected {_device(before)}"
    if now.inode != before.inode:
        yield f"found inode {now.inode}, expected {before.inode}"
    if now.size_bytes != before.size_bytes:
        yield f"found {now.size_bytes:,} bytes, expected {before.size_bytes:,}"
    if now.modified_ns != before.modified_ns:
        yield f"found a modification at {_time(now)}, expected {_time(before)}"


def _device(stamp: Stamp) -> str:
    return f"{os.major(stamp.device)}:{os.minor(stamp.device)}"


def _time(stamp: Stamp) -> str:
    seconds, nanoseconds = divmod(stamp.modified_ns, _NANOSECONDS)
    return f"{time.strftime('%Y-%m-%d %H:%M:%S', time.localtime(seconds))}.{nanoseconds:09}"


@contextmanager
def unchanged(path: str, stamp: Stamp) -> Iterator[None]:
    """Raises if a file changes during the block. The change also replaces the error that it caused.

    Raises:
        FileChangedError: As for `refuse_changed`.
    """
    try:
        yield
    finally:
        refuse_changed(path, stamp)

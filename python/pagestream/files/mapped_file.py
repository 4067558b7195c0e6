"""Files: `MappedFile`."""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Literal, Self

import numpy as np
import numpy.typing as npt

from pagestream import _native
from pagestream._common import environment
from pagestream._common.closing import ClosedByWith
from pagestream._common.paths import expanded
from pagestream._common.progress import Progress, reporting
from pagestream._common.public import set_module
from pagestream._common.types import Buffer, Mode, StrPath

__all__ = ["FileSystem", "MappedFile", "Residency"]

Advice = Literal["normal", "random", "sequential", "willneed", "dontneed", "cold", "hugepage"]


@set_module("pagestream")
@dataclass(frozen=True)
class FileSystem:
    """The mount of a file, from ``/proc/self/mountinfo``.

    It is for people and messages: no decision depends on a file system's name.

    Attributes:
        type: The system's name for it, for example ``"ext4"``, ``"nfs4"`` or ``"fuse.sshfs"``.
        source: The mounted device, or ``host:/path``.
        mount_point: The directory on which it is mounted.
        options: Options of the mount and of the file system, separated by commas.
        is_network: Whether reads are known to leave this machine.
        read_ahead_bytes: The kernel's read-ahead window there; None if it is unknown.

    Examples:
        >>> from pagestream import MappedFile
        >>> MappedFile("tokens.bin").file_system.mount_point.startswith("/")
        True
    """

    type: str
    source: str
    mount_point: str
    options: str
    is_network: bool
    read_ahead_bytes: int | None


@set_module("pagestream")
@dataclass(frozen=True)
class Residency:
    """The pages of a file that are in the page cache.

    Attributes:
        fraction: Cached share of the checked pages, 0 to 1; NaN if no page could be checked.
        pages: bool array with one entry per page of the range; None if only a sample was checked.
        method: ``"mincore"``, ``"cachestat"``, ``"preadv2"`` (a sample of at most 1024 pages, which fetches
            each missing page) or ``"unavailable"``.
        exact: Whether every page was checked, with a method that changes nothing. The kernel tells the truth
            only to the file's owner and to users that may write to it; for other users `method` is
            ``"preadv2"``.

    Examples:
        >>> from pagestream import MappedFile
        >>> MappedFile("tokens.bin").residency().exact
        True
    """

    fraction: float
    pages: npt.NDArray[np.bool_] | None = field(repr=False, compare=False)
    method: str
    exact: bool


@set_module("pagestream")
class MappedFile(_native.MappedFile, ClosedByWith):
    """A regular file, open for reading in the best way that its storage allows.

    With ``mode="auto"`` it is mapped shared. If the file system refuses that (FUSE with ``direct_io`` answers
    ENODEV), it is mapped private and read-only. If that also fails, it is not mapped, but read with
    ``pread``. `mode` shows the mode in use, and `reason` shows why it is not the first choice.

    Copies (`read`, `read_into`) survive a file that shrinks or fails during the copy, and raise. A `view` is
    the mapping itself. Touching it after the file was truncated gives zeros. Soon after (as with Ctrl-C), a
    `MappedReadError` is raised in the main thread, and further calls on this object also raise it.

    Args:
        path: The file. It must not be a directory, FIFO or device.
        mode: ``"auto"``, ``"shared"``, ``"private"`` or ``"read"``. None means ``PAGESTREAM_MMAP_MODE``
            from the environment, or ``"auto"``.

    Attributes:
        path: The given path, decoded by `os.fsdecode`. A leading ``~`` is the home directory.
        size: Size of the file in bytes when it was opened or last refreshed.
        mode: The mode in use: ``"shared"``, ``"private"`` or ``"read"``.
        requested_mode: The requested mode, which may be ``"auto"``.
        reason: Why the first choice is not in use, for example ``MAP_SHARED: ENODEV (No such device)``;
            or None.
        closed: Whether `close` was called.

    Raises:
        OSError: The file cannot be opened, or not in that mode. It has ``errno`` and ``filename``.
        ValueError: The mode is unknown, or the path contains a NUL.

    An audit event ``pagestream.open`` with path and mode is raised before the file is opened. A pickle
    contains only the path, and unpickling opens the file again. A forked child continues with the open file.
    Arrays over it (``np.frombuffer``, ``np.ndarray(buffer=...)``, ``torch.frombuffer``) stay valid until they
    die, even after `close`.

    Examples:
        >>> import numpy as np
        >>> from pagestream import MappedFile
        >>> f = MappedFile("tokens.bin")
        >>> f.mode, f.reason
        ('shared', None)
        >>> np.frombuffer(f, "u2")[:4]
        array([0, 1, 2, 3], dtype=uint16)
        >>> f.close()
    """

    __slots__ = ()

    def __new__(cls, path: StrPath, *, mode: Mode | None = None) -> Self:
        """Opens the file."""
        word = environment.mmap_mode(mode, "mode")
        file = super().__new__(cls, os.fsencode(expanded(path)), word)
        environment.log_opening(file.path, file.mode, file.reason)
        return file

    @property
    def file_system(self) -> FileSystem:  # type: ignore[override]
        """The file's mount; see `FileSystem`."""
        return FileSystem(**super().file_system)

    def read(self, offset: int = 0, length: int | None = None) -> bytes:
        """Returns a copy of bytes, in any mode.

        Args:
            offset: The first byte.
            length: The number of bytes; None for the rest of the file.

        Returns:
            Exactly `length` bytes, never fewer and never padded.

        Raises:
            ValueError: The range does not lie inside the file, or the file is closed.
            MappedReadError: The file was truncated, or its storage failed.
            FileChangedError: The file was written to since it was opened. If it was only extended, `refresh`
                makes it readable again.

        Examples:
            >>> from pagestream import MappedFile
            >>> MappedFile("tokens.bin").read(2, 4).hex(" ")
            '01 00 02 00'
        """
        return super().read(offset, length)

    def read_into(self, buffer: Buffer, offset: int = 0) -> int:
        """Fills a caller's buffer with the bytes from `offset`.

        Args:
            buffer: A writable and C-contiguous buffer of any element type.
            offset: The first byte in the file.

        Returns:
            The number of bytes written: the buffer's size, or the size of the file after `offset` if that is
            smaller.

        Raises:
            TypeError: The buffer is read-only or not contiguous.
            ValueError: `offset` lies beyond the end, or the file is closed.
            MappedReadError: The file was truncated, or its storage failed. The buffer's content is then
                undefined.
            FileChangedError: The file was written to since it was opened. If it was only extended, `refresh`
                makes it readable again.

        Examples:
            >>> import numpy as np
            >>> from pagestream import MappedFile
            >>> row = np.empty(3, "u2")
            >>> MappedFile("tokens.bin").read_into(row, 2), row
            (6, array([1, 2, 3], dtype=uint16))
        """
        return super().read_into(buffer, offset)

    def view(self, offset: int = 0, length: int | None = None) -> memoryview:
        """Returns a read-only memoryview of the mapping, or in ``"read"`` mode of a copy.

        It keeps the mapping alive by itself, even after `close` and `refresh`.

        Args:
            offset: The first byte.
            length: The number of bytes; None for the rest of the file.

        Raises:
            ValueError: The range does not lie inside the file, or the file is closed.

        Examples:
            >>> from pagestream import MappedFile
            >>> MappedFile("tokens.bin").view(0, 6).cast("H").tolist()
            [0, 1, 2]
        """
        return super().view(offset, length)

    def advise(  # type: ignore[override]
        self, advice: Advice, offset: int = 0, length: int | None = None
    ) -> bool:
        """Tells the kernel how a range will be used (madvise(2); in ``"read"`` mode posix_fadvise(2)).

        Args:
            advice: ``"normal"``, ``"random"`` (no read-ahead), ``"sequential"``, ``"willneed"`` (fetch it
                now, without waiting), ``"dontneed"`` (remove it from this process's memory, but keep it in
                the cache), ``"cold"``, ``"hugepage"``. Pages under arrays and views may have been written to,
                so ``"dontneed"`` makes them ``"cold"``.
            offset: The first byte of the range, which is widened to whole pages.
            length: The number of bytes; None for the rest of the file.

        Returns:
            Whether the kernel accepted the advice. Advice that the kernel does not know is not an error.

        Raises:
            ValueError: The word is unknown, or the range lies outside the file.

        Examples:
            >>> from pagestream import MappedFile
            >>> MappedFile("tokens.bin").advise("random")
            True
        """
        return super().advise(advice, offset, length)

    def residency(self, offset: int = 0, length: int | None = None) -> Residency:  # type: ignore[override]
        """Returns which pages of a range are in the page cache.

        Args:
            offset: The first byte of the range.
            length: The number of bytes; None for the rest of the file.

        Raises:
            ValueError: The range lies outside the file.

        Examples:
            >>> from pagestream import MappedFile
            >>> MappedFile("tokens.bin").residency().method
            'mincore'
        """
        # Choose new places each time, because the ``preadv2`` method caches each page that it checks.
        found = super().residency(offset, length, int.from_bytes(os.urandom(8)))
        pages = None if found["pages"] is None else np.frombuffer(found["pages"], np.bool_)
        return Residency(**{**found, "pages": pages})

    def warm(  # type: ignore[override]
        self, offset: int = 0, length: int | None = None, *, progress: Progress = None
    ) -> None:
        """Reads a range into the page cache. Ctrl-C stops it.

        Args:
            offset: The first byte of the range.
            length: The number of bytes; None for the rest of the file.
            progress: True for a progress bar (on rank 0 only), or a callable that gets (bytes done, total
                bytes).

        Raises:
            ValueError: The range lies outside the file.
            MappedReadError: The file was truncated, or its storage failed.

        Examples:
            >>> from pagestream import MappedFile
            >>> MappedFile("tokens.bin").warm(progress=lambda done, total: print(done == total))
            True
        """
        total_bytes = max(self.size - offset, 0) if length is None else length
        with reporting(progress, total_bytes, f"warm {os.path.basename(self.path)}") as report:
            super().warm(offset, length, report)

    def evict(self) -> None:
        """Drops the file from the page cache, after writing dirty pages. Needs no privilege.

        Pages stay while another process maps them, or a live array of `pagestream.safetensors` uses them.
        Pages under live arrays and views of this file are dropped only if this process owns the file or may
        write to it (MADV_PAGEOUT of madvise(2)).

        Raises:
            OSError: The system refused.

        Examples:
            >>> from pagestream import MappedFile
            >>> MappedFile("tokens.bin").evict()
        """
        super().evict()

    def lock(self) -> None:
        """Reads the whole mapping into memory and keeps it there (mlock(2)) until `unlock`.

        Raises:
            OSError: Locking is not permitted, or exceeds RLIMIT_MEMLOCK; the message names the limit.
            ValueError: In ``"read"`` mode there is no mapping to lock.

        Examples:
            >>> from pagestream import MappedFile
            >>> MappedFile("tokens.bin").lock()
        """
        super().lock()

    def unlock(self) -> None:
        """Undoes `lock`.

        Raises:
            ValueError: In ``"read"`` mode there is no mapping to unlock.

        Examples:
            >>> from pagestream import MappedFile
            >>> MappedFile("tokens.bin").unlock()
        """
        super().unlock()

    def check(self) -> None:
        """Raises if this is no longer the file that was opened.

        It compares size and modification time, and checks that the path still leads to the same file. A
        rewrite that keeps both size and time is not detected.

        Raises:
            FileChangedError: The file was truncated, extended, rewritten, deleted or replaced.
            ValueError: The file is closed.

        Examples:
            >>> from pagestream import MappedFile
            >>> MappedFile("tokens.bin").check()
        """
        super().check()

    def refresh(self) -> int:
        """Maps bytes that were appended since the file was opened. Existing views stay valid.

        The caller guarantees that a larger file was only extended, and not rewritten. Advice for the whole
        file, and `lock`, also apply to the new mapping.

        Returns:
            The new size in bytes.

        Raises:
            FileChangedError: The file did not grow, but was truncated or rewritten.
            ValueError: The file is closed.

        Examples:
            >>> from pagestream import MappedFile
            >>> MappedFile("tokens.bin").refresh()
            8192
        """
        return super().refresh()

    def close(self) -> None:
        r"""Closes the file. Views already returned stay valid until they die. Closing twice has no effect.

        Examples:
            >>> from pagestream import MappedFile
            >>> with MappedFile("tokens.bin") as f:
            ...     view = f.view(0, 2)
            >>> bytes(view)
            b'\x00\x00'
        """
        super().close()

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickles the absolute path and the requested mode."""
        open_again = partial(type(self), mode=self.requested_mode)  # type: ignore[arg-type]  # one of the words
        return open_again, (self._absolute_path,), getattr(self, "__dict__", None)

    def __repr__(self) -> str:
        """Shows path, size and mode."""
        state = "closed" if self.closed else self.mode
        return f"<{type(self).__name__} {self.path!r} {self.size} bytes, {state}>"

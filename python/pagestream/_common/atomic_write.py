"""Files that are written under temporary names and renamed at the end, all of them or none.

```text
create .name.<random>.tmp ── lock it ── write ── fsync ── rename over name
        │                       └── held until it is closed: a temporary file without a lock has no writer
        └── temporary files without a lock are removed when the same name is written again
```
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import stat
from typing import IO, TYPE_CHECKING

if TYPE_CHECKING:
    from types import TracebackType
    from typing import Self

    from pagestream._common.types import StrPath

_SUFFIX = ".tmp"
_RANDOM_BYTES = 8


class Replacement:
    """Files that are renamed at the end of a ``with`` block, all of them or none."""

    def __init__(self) -> None:
        self._files: list[tuple[str, str, IO[bytes]]] = []
        self._open: list[IO[bytes]] = []
        self._folders: list[int] = []
        self._locks: list[int] = []
        self._lock_name = ""
        # Recorded before the file is created, so that an interruption in between leaves no file behind.
        self._names: list[str] = []

    def __enter__(self) -> Self:
        return self

    def open(self, path: StrPath, what: str, *, replaces_link: bool = False) -> IO[bytes]:
        """Creates the file that will replace `path`.

        Args:
            path: The file, or a symbolic link.
            what: The content, for messages; a plural.
            replaces_link: Whether the file replaces a symbolic link itself, or its target.
        """
        target = os.fsdecode(path)
        if os.path.islink(target) and not replaces_link:
            target = os.path.realpath(target)
        mode = None
        with contextlib.suppress(FileNotFoundError):
            mode = os.stat(target, follow_symlinks=not replaces_link).st_mode
            kind = stat.S_IFMT(mode)
            if kind == stat.S_IFDIR:
                message = f"{what} are written to a file, but this is a directory"
                raise IsADirectoryError(errno.EISDIR, message, target)
            if kind == stat.S_IFLNK:
                mode = None
            elif kind != stat.S_IFREG:
                message = f"{what} are written to a file that takes the place of an old one, not to a device"
                raise OSError(errno.EINVAL, f"{message}, FIFO or socket", target)
        name, file = self._create(target)
        self._files.append((name, target, file))
        # The new file has the old file's permissions.
        if mode is not None and stat.S_IMODE(mode) != stat.S_IMODE(os.fstat(file.fileno()).st_mode):
            os.fchmod(file.fileno(), stat.S_IMODE(mode))
        return file

    def scratch(self) -> IO[bytes]:
        """Creates a file without a name, next to the first one."""
        name, file = self._create(self._files[0][1])
        os.unlink(name)
        return file

    def _create(self, target: str) -> tuple[str, IO[bytes]]:
        folder, base = os.path.split(target)
        # A very long name could become too long, so use only its beginning.
        prefix = f".{base[:40]}."
        _remove_abandoned(folder or os.curdir, prefix)
        while True:
            name = os.path.join(folder, f"{prefix}{os.urandom(_RANDOM_BYTES).hex()}{_SUFFIX}")
            self._names.append(name)
            try:
                # A single call, so no interrupt can come in between: a file is in the list as soon as it is
                # open.
                self._open.extend(map(open, (name,), ("x+b",)))
            except OSError as error:
                # The caller knows the directory, and not the temporary name.
                error.filename = folder or os.curdir
                raise
            file = self._open[-1]
            with contextlib.suppress(OSError):
                fcntl.flock(file, fcntl.LOCK_EX)
            # Another writer may have considered it abandoned before it was locked.
            if os.fstat(file.fileno()).st_nlink:
                return name, file

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            if kind is None:
                self._finish()
            elif isinstance(error, OSError) and error.filename is None and error.errno and self._files:
                # Name the file, for example if the disk is full.
                error.filename = self._files[0][1]
        finally:
            for file in self._open:
                try:
                    file.close()
                except OSError:
                    # A failed flush was reported before, or belongs to a file that is dropped.
                    continue
            for name in self._names:
                if os.path.lexists(name):
                    os.unlink(name)
            self._remove_lock_file()
            for descriptor in (*self._locks, *self._folders):
                os.close(descriptor)

    def _remove_lock_file(self) -> None:
        """Removes the lock file, if this writer owns it: an interrupt may have come before the lock."""
        if self._locks and os.fstat(self._locks[-1]).st_nlink:
            with contextlib.suppress(OSError):
                fcntl.flock(self._locks[-1], fcntl.LOCK_EX | fcntl.LOCK_NB)
                os.unlink(self._lock_name)

    def _finish(self) -> None:
        for name, target, file in self._files:
            try:
                file.flush()
                os.fsync(file.fileno())
            except OSError as error:
                error.filename = error.filename or target or name
                raise
        *_, (_, last, _) = self._files
        if len(self._files) > 1:
            self._rename_in_turn(last)
        else:
            for name, target, _ in self._files:
                os.replace(name, target)
        for folder in sorted({os.path.dirname(target) or os.curdir for _, target, _ in self._files}):
            _hold(self._folders, folder, os.O_RDONLY | os.O_DIRECTORY)
            # From now on, the names in the folder are durable.
            os.fsync(self._folders[-1])

    def _rename_in_turn(self, last: str) -> None:
        """Renames several files, while no other writer does so. The last file is the index of the rest.

        Writers lock a separate file next to the target. Readers could hold a lock on the folder, or on the
        target, for as long as they like.
        """
        folder, base = os.path.split(last)
        self._lock_name = os.path.join(folder, f".{base[:40]}.lock")
        while True:
            _hold(self._locks, self._lock_name, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW)
            with contextlib.suppress(OSError):  # the file system may have no locks
                fcntl.flock(self._locks[-1], fcntl.LOCK_EX)
            # The previous writer has removed it, and another may have created it again.
            if os.fstat(self._locks[-1]).st_nlink:
                break
        # While the other files are replaced, no index is better than a mismatched one.
        if os.path.lexists(last):
            os.unlink(last)
        for temporary, target, _ in self._files:
            os.replace(temporary, target)


def _hold(held: list[int], path: str, flags: int) -> None:
    """Opens a descriptor for a list whose elements are closed later."""
    # A single call, so no interrupt can come in between: a descriptor is in the list as soon as it is open.
    held.extend(map(os.open, (path,), (flags | os.O_CLOEXEC,), (0o666,)))


def _remove_abandoned(folder: str, prefix: str) -> None:
    """Removes temporary files of the same target without a lock, because their writers have ended."""
    length = len(prefix) + 2 * _RANDOM_BYTES + len(_SUFFIX)
    with contextlib.suppress(OSError):
        for name in os.listdir(folder):
            if name.startswith(prefix) and name.endswith(_SUFFIX) and len(name) == length:
                _remove_if_abandoned(os.path.join(folder, name))


def _remove_if_abandoned(path: str) -> None:
    held: list[int] = []
    try:
        # If the file system has no locks, a living writer cannot be detected, so the file stays.
        with contextlib.suppress(OSError):
            _hold(held, path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
            fcntl.flock(held[0], fcntl.LOCK_EX | fcntl.LOCK_NB)
            os.unlink(path)
    finally:
        for descriptor in held:
            os.close(descriptor)

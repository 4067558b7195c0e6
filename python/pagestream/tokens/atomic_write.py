"""Files that are written under another name and take their own at the end, all of them or none."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import secrets
import stat
from typing import IO, TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable
    from types import TracebackType
    from typing import Self

    from pagestream._common.types import StrPath


class Replacement:
    """Files that take their names at the end of a ``with`` block, all of them or none."""

    def __init__(self) -> None:
        self._files: list[tuple[str, str, IO[bytes]]] = []
        self._open: list[IO[bytes]] = []
        # Known before the file is made, so that an interruption in between leaves nothing.
        self._names: list[str] = []

    def __enter__(self) -> Self:
        return self

    def open(self, path: StrPath) -> IO[bytes]:
        """Creates the file that will replace `path`."""
        # A symbolic link stays one: what it leads to is replaced.
        target = os.path.realpath(os.fsdecode(path)) if os.path.islink(path) else os.fsdecode(path)
        mode = None
        with contextlib.suppress(FileNotFoundError):
            mode = os.stat(target).st_mode
            kind = stat.S_IFMT(mode)
            if kind == stat.S_IFDIR:
                message = "tokens are written to a file, but this is a directory"
                raise IsADirectoryError(errno.EISDIR, message, target)
            if kind != stat.S_IFREG:
                message = "tokens are written to a file that takes the place of an old one, not to a device"
                raise OSError(errno.EINVAL, f"{message}, FIFO or socket", target)
        name, file = self._create(target)
        self._files.append((name, target, file))
        # Whoever may read the old file may read the new one, and nobody else.
        if mode is not None and stat.S_IMODE(mode) != stat.S_IMODE(os.fstat(file.fileno()).st_mode):
            os.fchmod(file.fileno(), stat.S_IMODE(mode))
        return file

    def scratch(self) -> IO[bytes]:
        """A file without a name, next to the first one."""
        name, file = self._create(self._files[0][1])
        os.unlink(name)
        return file

    def _create(self, target: str) -> tuple[str, IO[bytes]]:
        folder, base = os.path.split(target)
        # A name of any length may become too long; its beginning says enough.
        name = os.path.join(folder, f".{base[:40]}.{secrets.token_hex(8)}.tmp")
        self._names.append(name)
        try:
            # One call, which no interrupt can come into: a file is in the list as soon as it is open.
            self._open.extend(map(open, (name,), ("x+b",)))
            return name, self._open[-1]
        except OSError as error:
            # The name is ours; what the caller can do something about is its directory.
            error.filename = folder or os.curdir
            raise

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            if kind is None:
                self._finish()
            elif isinstance(error, OSError) and error.filename is None and error.errno and self._files:
                # The disk is full and the like: say which file.
                error.filename = self._files[0][1]
        finally:
            for file in self._open:
                try:
                    file.close()
                except OSError:
                    # What could not be flushed was reported before, or belongs to a file that is dropped.
                    continue
            for name in self._names:
                if os.path.lexists(name):
                    os.unlink(name)

    def _finish(self) -> None:
        for name, target, file in self._files:
            try:
                file.flush()
                os.fsync(file.fileno())
            except OSError as error:
                error.filename = error.filename or target or name
                raise
        folders = sorted({os.path.dirname(target) or os.curdir for _, target, _ in self._files})
        held: list[int] = []
        try:
            _lock_folders(folders, held)
            # Last is what says what the others are. While they are replaced there is none, rather than
            # one that does not fit.
            *_, (_, last, _) = self._files
            if len(self._files) > 1 and os.path.lexists(last):
                os.unlink(last)
            for name, target, _ in self._files:
                os.replace(name, target)
            for descriptor in held:
                os.fsync(descriptor)
        finally:
            for descriptor in held:
                os.close(descriptor)


def _lock_folders(folders: Iterable[str], held: list[int]) -> None:
    """Adds descriptors of folders, locked as far as the file system can: two writers of a pair take turns."""
    flags = os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC
    for folder in folders:
        # One call, which no interrupt can come into: a descriptor is in the list as soon as it is open.
        held.extend(map(os.open, (folder,), (flags,)))
        with contextlib.suppress(OSError):
            fcntl.flock(held[-1], fcntl.LOCK_EX)

"""``OUT.parts``, where ``pagestream tokenize`` keeps finished parts. One run at a time works in the folder.

```text
lock the folder ── encode parts ── write OUT ── remove parts, lock file and folder
        │               └── after an error or a kill the parts stay, and the same command resumes there
        └── the kernel releases the lock when the process ends, even by SIGKILL
```
"""

from __future__ import annotations

import errno
import fcntl
import os
import re
import sys
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING

from pagestream._common.amounts import count
from pagestream.cli._encoding import is_made
from pagestream.cli._stamps import is_current

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pagestream.cli._texts import Part

# Names of parts, and of temporary files from `Replacement`.
_PART = re.compile(r"\d{6,}-[0-9a-f]{32}\.(tokens|lengths)|\.\d{6,}-[0-9a-f]+\..*(tmp|lock)")
_LOCK = ".pagestream.lock"
# The lock file contains the number of the process that holds the lock, and the name of its host.
_OWNER = re.compile(rb"(\d+) (\S+)\n")
_OWNER_BYTES = 1 << 10


@contextmanager
def folder_of_parts(folder: str, out: str, parts: list[Part], names: list[str]) -> Iterator[None]:
    """Creates the folder for a block, and removes it afterwards.

    After an error, finished parts stay, and a message says so.

    Args:
        folder: The folder.
        out: The token file, for messages.
        parts: The parts.
        names: The path of each part, without suffix.

    Raises:
        OSError: Another process works in the folder, or the folder cannot be created.
    """
    with _locked(folder, out):
        try:
            yield
        except BaseException:
            pairs = zip(parts, names, strict=True)
            if done := sum(is_made(name) and is_current(part.path, part.stamp) for part, name in pairs):
                print(
                    f"pagestream: {folder} keeps {done} of {count(len(names), 'part')}; "
                    "the same command resumes there",
                    file=sys.stderr,
                )
            else:
                _remove_parts(folder)
            raise
        _remove_parts(folder)


def _remove_parts(folder: str) -> None:
    for name in os.listdir(folder):
        if _PART.fullmatch(name):
            os.unlink(os.path.join(folder, name))


@contextmanager
def _locked(folder: str, out: str) -> Iterator[None]:
    """Holds the lock of the folder. At the end, removes the folder unless it contains files."""
    path = os.path.join(folder, _LOCK)
    descriptor = _lock(folder, path, out)
    try:
        yield
    finally:
        # In this order: the lock file disappears while this process still holds the lock.
        with suppress(OSError):
            os.unlink(path)
            os.rmdir(folder)
        os.close(descriptor)


def _lock(folder: str, path: str, out: str) -> int:
    """Returns a descriptor that holds the lock.

    Raises:
        OSError: Another process holds the lock.
    """
    while True:
        os.makedirs(folder, exist_ok=True)
        try:
            descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o666)
        except FileNotFoundError:
            continue  # the previous run has just removed the folder
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            owner = _owner(descriptor)
            os.close(descriptor)
            message = (
                f"{owner} writes this token file now, and holds {path}; wait until it ends, or name another "
                "token file"
            )
            raise OSError(errno.EBUSY, message, out) from None
        except OSError:
            pass  # the file system has no locks
        # The previous run may have removed the file after it was opened here.
        if os.fstat(descriptor).st_nlink:
            break
        os.close(descriptor)
    with suppress(OSError):
        os.truncate(descriptor, 0)
        os.pwrite(descriptor, f"{os.getpid()} {os.uname().nodename}\n".encode(), 0)
    return descriptor


def _owner(descriptor: int) -> str:
    """Returns the process that holds the lock, as far as the lock file shows it."""
    found = _OWNER.fullmatch(os.pread(descriptor, _OWNER_BYTES, 0))
    if found is None:
        return "another process"
    process, host = found[1].decode(), os.fsdecode(found[2])
    return f"process {process}" if host == os.uname().nodename else f"process {process} on {host}"

"""Saving: a writer fills a temporary file, which then replaces the old one by a rename.

```text
temporary file beside the target ── writer ── owner, attributes, mode ── rename over the target
        │ the folder takes no new file                                       │ the target is a mount point
        └── temporary file in $TMPDIR ── writer ──┐                          │
                                                  └── copy into the target ──┘
                                                      refused while this process maps the target
```

Loaded tensors are views of their file. If a writer rewrote the file in place, as safetensors before 0.8 does,
it would change these tensors, and would then save the changed values.
"""

from __future__ import annotations

import errno
import os
import shutil
import stat
import tempfile
import time
from contextlib import suppress
from typing import TYPE_CHECKING

from pagestream._common.paths import expanded
from pagestream.errors import SafetensorError

if TYPE_CHECKING:
    from collections.abc import Callable

    from pagestream._common.types import StrPath

# A file cannot be created in the folder or renamed, but the old file may still be writable.
_NO_RENAME = {errno.EACCES, errno.EBUSY, errno.EPERM, errno.EROFS, errno.EXDEV}
_ACCESS_LIST = "system.posix_acl_access"
# Checksums of the content. The kernel computes them for the new content.
_HASHES = {"security.evm", "security.ima"}
# The mode of a file until it gets the old file's mode.
_OWNERS_ALONE = 0o600
_COPY_BYTES = 1 << 20
# Another thread unmaps large tensors shortly after the program has dropped them.
_UNMAP_SECONDS = 2.0


def save(writer: Callable[[str], object], filename: StrPath) -> None:
    """Saves a file with a writer that may work in place.

    A symbolic link stays, and its target is replaced. An old file keeps its mode, its extended attributes,
    and its owner if the process may set it. A new file gets the mode that `open` would give it.

    Args:
        writer: Writes to a given path.
        filename: The file to save.

    Raises:
        SafetensorError: `filename` is a device, a FIFO or a folder; or the file cannot be written.
        OSError: `filename` cannot be resolved: a link leads to itself, or a folder may not be searched.
    """
    path = os.fsdecode(os.path.realpath(expanded(filename)))
    old = _old_file(path)
    # Record names before creating their files, so that an interruption in between leaves no file behind.
    names = [_temporary_name(os.path.dirname(path), path)]
    try:
        try:
            mode = _create(names[0], 0o666 if old is None else _OWNERS_ALONE)
        except OSError as error:
            if old is None or error.errno not in _NO_RENAME:
                raise
            names.append(_temporary_name(tempfile.gettempdir(), path))
            _write_elsewhere(writer, names[1], path, error)
            _overwrite(path, names[1], error)
            return
        writer(names[0])
        if old is not None:
            _copy_attributes(path, names[0], old)
            mode = stat.S_IMODE(old.st_mode)
        with suppress(OSError):  # the file system has no modes
            os.chmod(names[0], mode)
        try:
            os.replace(names[0], path)
        except OSError as error:
            if old is None or error.errno not in _NO_RENAME:
                raise
            _overwrite(path, names[0], error)
    except OSError as error:
        message = f"{path}: the file cannot be saved: {error.strerror or error}"
        raise SafetensorError(message) from error
    finally:
        for name in names:
            if os.path.lexists(name):
                os.unlink(name)


def _old_file(path: str) -> os.stat_result | None:
    """Returns the facts of the file to replace, or None if there is none."""
    try:
        old = os.stat(path)
    except FileNotFoundError:
        return None
    # A rename would replace a device or a FIFO with a file.
    if not stat.S_ISREG(old.st_mode):
        message = f"{path}: it is no regular file, and would be replaced by one; name another"
        raise SafetensorError(message)
    return old


def _temporary_name(folder: str, path: str) -> str:
    # A very long name could become too long, so use only its beginning.
    return os.path.join(folder, f".{os.path.basename(path)[:40]}.{os.urandom(8).hex()}.tmp")


def _create(name: str, mode: int) -> int:
    """Creates an empty file. Returns its mode, which depends on the umask and the folder's access list."""
    descriptor = os.open(name, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode)
    try:
        return stat.S_IMODE(os.fstat(descriptor).st_mode)
    finally:
        os.close(descriptor)


def _write_elsewhere(writer: Callable[[str], object], name: str, path: str, reason: OSError) -> None:
    """Writes a file in the folder for temporary files."""
    try:
        _create(name, _OWNERS_ALONE)
        writer(name)
    except Exception as error:
        error.add_note(
            f"{os.path.dirname(path)} takes no new file ({reason.strerror}), so the file is first written to "
            f"{os.path.dirname(name)}; set TMPDIR to use another folder"
        )
        raise


def _copy_attributes(path: str, name: str, old: os.stat_result) -> None:
    """Gives a file the old file's owner, access list and other extended attributes."""
    found = os.stat(name)
    if (found.st_uid, found.st_gid) != (old.st_uid, old.st_gid):
        try:
            os.chown(name, old.st_uid, old.st_gid)
        except OSError:
            with suppress(OSError):  # only root may change the owner
                os.chown(name, -1, old.st_gid)
    attributes: list[str] = []
    with suppress(OSError):  # the file system has none
        attributes = os.listxattr(path)
    if _ACCESS_LIST not in attributes:
        with suppress(OSError):
            os.removexattr(name, _ACCESS_LIST)  # from the folder's default
    for attribute in attributes:
        if attribute in _HASHES:
            continue
        try:
            os.setxattr(name, attribute, os.getxattr(path, attribute))
        except OSError:
            # Without the list, the old mode would give the group more rights than before.
            if attribute == _ACCESS_LIST:
                raise


def _overwrite(path: str, name: str, reason: OSError) -> None:
    """Copies a finished file over the old one, if a rename is impossible.

    Raises:
        SafetensorError: This process maps the old file.
        OSError: The old file cannot be written.
    """
    deadline = time.monotonic() + _UNMAP_SECONDS
    while _is_mapped(path):
        if time.monotonic() > deadline:
            message = (
                f"{path}: the file cannot be replaced by a rename ({reason.strerror}), and this process maps "
                "it: to overwrite it would change tensors that were loaded from it; close the file and "
                "delete the tensors first (those loaded with copy=True may stay), or save to another path"
            )
            raise SafetensorError(message)
        time.sleep(0.01)
    with open(name, "rb") as source, open(path, "r+b") as target:
        size, old_size = (os.fstat(file.fileno()).st_size for file in (source, target))
        if size > old_size:
            _reserve(target.fileno(), old_size, size)
        try:
            shutil.copyfileobj(source, target, _COPY_BYTES)
            target.truncate()
        except BaseException as error:
            error.add_note(f"{path}: the file is incomplete now; save it again")
            raise


def _reserve(descriptor: int, old_size: int, size: int) -> None:
    """Reserves space for longer content, so that a full disk leaves the old content intact."""
    try:
        os.posix_fallocate(descriptor, old_size, size - old_size)
    except OSError as error:
        os.ftruncate(descriptor, old_size)
        if error.errno not in (errno.EINVAL, errno.EOPNOTSUPP):  # the file system cannot reserve space
            raise


def _is_mapped(path: str) -> bool:
    """Returns whether this process maps a file."""
    facts = os.stat(path)
    with open("/proc/self/maps", "rb") as maps:
        mapped = [line.split(maxsplit=5) for line in maps]
    # On some file systems these device numbers differ from `stat`'s, so compare by path.
    names = {fields[5].rstrip(b"\n") for fields in mapped if int(fields[4]) == facts.st_ino and fields[5:]}
    return not all(_is_other(name, facts) for name in names)


def _is_other(name: bytes, facts: os.stat_result) -> bool:
    """Returns whether a path leads to a file other than the one with these facts."""
    try:
        return not os.path.samestat(os.stat(name), facts)
    except OSError:  # the mapped file was deleted, but it may be this file under another name
        return False

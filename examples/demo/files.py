"""Files that are either whole or absent, and records of the settings they were made with.

A stage of the demo writes its files, then a record: a JSON file with the key of the stage's settings, a
hash of each file, and what else the next run wants to know. A stage is reused only if its record is there,
has the same key, and every file still hashes to what it says.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence
    from pathlib import Path


class DemoError(Exception):
    """Something that the demo checks did not hold; the message says what, for the user."""


@contextlib.contextmanager
def written_whole(path: Path) -> Iterator[Path]:
    """Gives a temporary path beside `path`, and renames it once it is written and flushed to the disk.

    Whatever happens, `path` is the old file or the new one, never a part of one.

    Args:
        path: Where the file goes.

    Yields:
        Where to write it.
    """
    partial = path.with_name(f".{path.name}.{os.getpid()}.partial")
    try:
        yield partial
        _flush(partial)
        partial.replace(path)
        _flush(path.parent)
    finally:
        partial.unlink(missing_ok=True)


def _flush(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def settings_key(settings: Mapping[str, object]) -> str:
    """A short hash that differs whenever any of the settings does."""
    return _hash(json.dumps(settings, sort_keys=True).encode())[:16]


def write_json(path: Path, facts: Mapping[str, object]) -> None:
    """Writes `facts` as readable JSON, whole or not at all."""
    with written_whole(path) as partial:
        partial.write_text(json.dumps(facts, indent=2) + "\n", encoding="utf-8")


def write_record(path: Path, key: str, files: Sequence[Path], facts: Mapping[str, object]) -> None:
    """Records that `files`, which lie beside `path`, are complete and of the settings of `key`."""
    hashes = {file.name: _hash(file.read_bytes()) for file in files}
    write_json(path, {"key": key, "files": hashes, **facts})


def read_record(path: Path, key: str) -> dict[str, Any] | None:
    """What `write_record` wrote.

    Args:
        path: The record.
        key: The key of the settings that are wanted now.

    Returns:
        The record, or None if there is none, it is of other settings, or a file is gone or changed.
    """
    try:
        record: dict[str, Any] = json.loads(path.read_bytes())
        intact = all(_hash((path.parent / name).read_bytes()) == old for name, old in record["files"].items())
    except (OSError, ValueError, KeyError):
        return None
    return record if intact and record["key"] == key else None


def _hash(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()

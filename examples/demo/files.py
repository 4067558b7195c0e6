"""Files that are either complete or absent, and records of their settings.

A stage of the demo writes its files and then a record: a JSON file with the key of the stage's settings, a
hash of each file, and further facts for the next run. The next run reuses a stage only if its record exists
and has the same key, and if every file still has the recorded hash.
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
    """A check of the demo failed. The message explains the failure to the user."""


@contextlib.contextmanager
def written_whole(path: Path) -> Iterator[Path]:
    """Yields a temporary path beside `path`, and renames it once the file is written and synced to the disk.

    In any event, `path` is the complete old file or the complete new file.

    Args:
        path: The final path.

    Yields:
        The path to write to.
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
    """Returns a short hash that changes with any of the settings."""
    return _hash(json.dumps(settings, sort_keys=True).encode())[:16]


def write_json(path: Path, facts: Mapping[str, object]) -> None:
    """Writes `facts` as readable JSON. The file is either complete or absent."""
    with written_whole(path) as partial:
        partial.write_text(json.dumps(facts, indent=2) + "\n", encoding="utf-8")


def write_record(path: Path, key: str, files: Sequence[Path], facts: Mapping[str, object]) -> None:
    """Records that `files`, in the folder of `path`, are complete and belong to the settings of `key`."""
    hashes = {file.name: _hash(file.read_bytes()) for file in files}
    write_json(path, {"key": key, "files": hashes, **facts})


def read_record(path: Path, key: str) -> dict[str, Any] | None:
    """Reads a record of `write_record`.

    Args:
        path: The record.
        key: The key of the current settings.

    Returns:
        The record, or None if it is missing or belongs to other settings, or if a file is missing or changed.
    """
    try:
        record: dict[str, Any] = json.loads(path.read_bytes())
        intact = all(_hash((path.parent / name).read_bytes()) == old for name, old in record["files"].items())
    except (OSError, ValueError, KeyError):
        return None
    return record if intact and record["key"] == key else None


def _hash(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()

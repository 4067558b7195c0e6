"""What lies at a path: a checkpoint, or token files."""

from __future__ import annotations

import errno
import os
from typing import TypeAlias

from pagestream.tokens.corpus import TokenCorpus, open_tokens
from pagestream.weights.checkpoint import Checkpoint, open_checkpoint

Opened: TypeAlias = Checkpoint | TokenCorpus

_WEIGHTS, _INDEX = ".safetensors", ".safetensors.index.json"
# The length of a header that a JSON object follows.
_BEGINNING_BYTES = 9


def opened(path: str, dtype: str | None = None, *, ahead: bool | None = None) -> Opened:
    """Opens what lies at a path.

    Raises:
        OSError: There is nothing, or it cannot be opened.
        FormatError: It is a token file and bad.
        SafetensorError: It is a safetensors file and bad.
    """
    if has_weights(path):
        return open_checkpoint(path, ahead=ahead)
    try:
        return open_tokens(path, dtype=dtype)
    except FileNotFoundError as error:
        if os.path.isdir(path):
            error.strerror = f"no names that end in {_WEIGHTS}, and {error.strerror}"
        raise


def has_weights(path: str) -> bool:
    """Returns whether a path leads to safetensors files, by names or by first bytes."""
    if os.path.isdir(path):
        return any(name.endswith((_WEIGHTS, _INDEX)) for name in os.listdir(path))
    if path.endswith((_WEIGHTS, _INDEX)):
        return True
    if not os.path.isfile(path):
        return False
    with open(path, "rb") as file:
        beginning = file.read(_BEGINNING_BYTES)
    length = int.from_bytes(beginning[:8], "little")
    return beginning[8:] == b"{" and 0 < length <= os.path.getsize(path)


def files_of(path: str) -> list[str]:
    """Returns the regular files at a path, whatever they hold: of a folder those that `opened` takes.

    Raises:
        OSError: There is nothing at the path.
    """
    if os.path.isfile(path) and not path.endswith(_INDEX):
        return [path]
    if not os.path.lexists(path):
        raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), path)
    if not os.path.isdir(path) and not os.path.isfile(path):
        message = "not a regular file; pipes and devices have no pages"
        raise OSError(errno.EINVAL, message, path)
    found = opened(path, ahead=False)
    return list(found.files) if isinstance(found, Checkpoint) else [shard.path for shard in found.shards]

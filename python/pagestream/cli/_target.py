"""What lies at a path: a checkpoint, or token files."""

from __future__ import annotations

import errno
import os
from typing import TYPE_CHECKING, TypeAlias

from pagestream.errors import SafetensorError
from pagestream.tokens.corpus import TokenCorpus, open_tokens
from pagestream.weights.checkpoint import Checkpoint, native_files, open_partly

if TYPE_CHECKING:
    from pagestream.tokens.corpus import Format, TokenShard

Opened: TypeAlias = Checkpoint | TokenCorpus

_WEIGHTS, _INDEX = ".safetensors", ".safetensors.index.json"
# Of a Megatron corpus: where its documents are, and their tokens.
_PAIR = (".idx", ".bin")
# The length of a header that a JSON object follows.
_BEGINNING_BYTES = 9


def opened(
    path: str,
    dtype: str | None = None,
    format: Format | None = None,
    *,
    ahead: bool | None = None,
    partly: bool = False,
) -> Opened:
    """Opens what lies at a path. `dtype` and `format` are those of token files, `partly` is for weights.

    Raises:
        OSError: There is nothing, or it cannot be opened.
        ValueError: There are weights, and `dtype` or `format` is given.
        FormatError: It is a token file and bad.
        SafetensorError: It is a safetensors file and bad.
    """
    if has_weights(path) and format is None:
        if dtype is not None:
            message = f"{path}: it has safetensors weights, which say their types; --dtype is for raw tokens"
            raise ValueError(message)
        return open_weights(path, ahead=ahead, partly=partly)
    try:
        return open_tokens(path, dtype=dtype, format=format)
    except FileNotFoundError as error:
        if os.path.isdir(path):
            error.strerror = f"no names that end in {_WEIGHTS}, and {error.strerror}"
            if os.path.isdir(snapshots := os.path.join(path, "snapshots")):
                found = ", ".join(sorted(os.listdir(snapshots)))
                error.strerror += f"; the Hugging Face cache has them in snapshots/: name one of {found}"
        raise


def open_weights(path: str, *, ahead: bool | None = None, partly: bool = False) -> Checkpoint:
    """Opens safetensors files. Links lead where the user has put them.

    With `partly` files and tensors with problems are left out, and `problem_of` tells of them.

    Raises:
        OSError: There is nothing, or it cannot be opened.
        SafetensorError: The files are bad; with `partly` all of them.
    """
    # A single file is followed wherever it leads, be it a descriptor.
    cache_root = os.sep if os.path.isdir(path) or path.endswith(_INDEX) else None
    found = open_partly(path, cache_root=cache_root, ahead=ahead)
    if (problem := problem_of(found)) and not (partly and found.files):
        found.close()
        message = f"{path}: {problem}"
        raise SafetensorError(message)
    return found


def problem_of(weights: Checkpoint) -> str | None:
    """Returns why a checkpoint that was opened partly is not whole."""
    return native_files(weights).problem


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


def files_of(path: str, *, partly: bool = False) -> list[str]:
    """Returns the regular files at a path, whatever they hold.

    Of a folder, a pattern or an index they are those that `opened` takes; of a Megatron pair, both.

    Raises:
        OSError: There is nothing at the path.
    """
    stem, suffix = os.path.splitext(path)
    is_file = os.path.isfile(path)
    if is_file and suffix in _PAIR and all(os.path.isfile(stem + other) for other in _PAIR):
        return [stem + other for other in _PAIR]
    if is_file and not path.endswith(_INDEX):
        return [path]
    if os.path.lexists(path) and not is_file and not os.path.isdir(path):
        message = "not a regular file; pipes and devices have no pages"
        raise OSError(errno.EINVAL, message, path)
    with opened(path, ahead=False, partly=partly) as found:
        if isinstance(found, Checkpoint):
            return list(found.files)
        return [file for shard in found.shards for file in _with_index(shard)]


def _with_index(shard: TokenShard) -> list[str]:
    """Returns the files of a shard."""
    if shard.format != "megatron":
        return [shard.path]
    stem, _ = os.path.splitext(shard.path)
    return [stem + suffix for suffix in _PAIR]

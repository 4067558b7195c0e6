"""Opens the checkpoint or the token files at a path."""

from __future__ import annotations

import errno
import os
from typing import TYPE_CHECKING, TypeAlias

from pagestream._common.paths import expanded
from pagestream.errors import SafetensorError
from pagestream.tokens.corpus import TokenCorpus, open_tokens
from pagestream.tokens.paths import token_paths
from pagestream.weights import hub
from pagestream.weights.checkpoint import Checkpoint, native_files, open_partly

if TYPE_CHECKING:
    from collections.abc import Iterable

    from pagestream.tokens.corpus import Format, TokenShard

Opened: TypeAlias = Checkpoint | TokenCorpus

_WEIGHTS, _INDEX = ".safetensors", ".safetensors.index.json"
# The files of a Megatron shard: the index of documents, and the tokens.
_PAIR = (".idx", ".bin")
# A safetensors file begins with 8 bytes for the length of the header, then the brace of its JSON.
_BEGINNING_BYTES = 9


def located(path: str) -> str:
    """Returns a path without ``~``; for the id of a Hugging Face repository its snapshot in the local cache.

    Raises:
        FileNotFoundError: There is neither such a path nor such a snapshot; or the path is a URL.
    """
    plain = expanded(path)
    # The stem of a Megatron pair is not a file.
    return plain if os.path.lexists(f"{plain}.idx") else hub.local_folder(plain)


def opened(
    path: str,
    dtype: str | None = None,
    format: Format | None = None,
    *,
    ahead: bool | None = None,
    partly: bool = False,
) -> Opened:
    """Opens the checkpoint or the token files at a path, which may be an id; see `located`.

    `dtype` and `format` apply to token files: with a `format`, even a safetensors file is opened as tokens.
    `ahead` and `partly` apply to weights.

    Raises:
        OSError: The path is missing or cannot be opened.
        ValueError: The path has weights, and `dtype` is given without `format`; or a word is unknown.
        FormatError: A token file is invalid.
        SafetensorError: A safetensors file is invalid.
    """
    path = located(path)
    if has_weights(path) and format is None:
        if dtype is not None:
            message = f"{path}: safetensors weights record their types; --dtype is for raw tokens"
            raise ValueError(message)
        return open_weights(path, ahead=ahead, partly=partly)
    try:
        # Pass a list, because commands process all files of a folder, whatever their splits.
        return open_tokens([*token_paths(path)], dtype=dtype, format=format)
    except FileNotFoundError as error:
        if os.path.isdir(path):
            error.strerror = f"no {_WEIGHTS} files, and {error.strerror}"
            if os.path.isdir(snapshots := os.path.join(path, "snapshots")):
                found = ", ".join(sorted(os.listdir(snapshots)))
                error.strerror += (
                    f"; the files of a Hugging Face cache are in snapshots/: name one of {found}"
                )
        raise


def open_weights(path: str, *, ahead: bool | None = None, partly: bool = False) -> Checkpoint:
    """Opens safetensors files. Links may lead out of the folder.

    `partly` leaves out the files and tensors with problems; `problem_of` reports them.

    Raises:
        OSError: The path is missing or cannot be opened.
        SafetensorError: A file is invalid; with `partly`, no file is valid.
    """
    path = located(path)
    # A single file may be a link to any place, even to a descriptor, for example /dev/fd/3.
    cache_root = os.sep if os.path.isdir(path) or path.endswith(_INDEX) else None
    found = open_partly(path, cache_root=cache_root, ahead=ahead)
    if (problem := problem_of(found)) and not (partly and found.files):
        found.close()
        message = f"{path}: {problem}"
        raise SafetensorError(message)
    return found


def problem_of(weights: Checkpoint) -> str | None:
    """Returns the problem of a partly opened checkpoint, or None if it is complete."""
    return native_files(weights).problem


def has_weights(path: str) -> bool:
    """Returns whether a path has safetensors files, judged by their names or first bytes."""
    path = located(path)
    if os.path.isdir(path):
        return bool(weights_in(path))
    if path.endswith((_WEIGHTS, _INDEX)):
        return True
    if not os.path.isfile(path):
        return False
    with open(path, "rb") as file:
        beginning = file.read(_BEGINNING_BYTES)
    length = int.from_bytes(beginning[:8], "little")
    return beginning[8:] == b"{" and 0 < length <= os.path.getsize(path)


def weights_in(folder: str) -> list[str]:
    """Returns the names of the safetensors files and indexes in a folder, sorted."""
    return sorted(name for name in os.listdir(folder) if name.endswith((_WEIGHTS, _INDEX)))


def files_of(paths: Iterable[str]) -> tuple[list[str], list[str]]:
    """Returns the regular files at paths, each file once, and the problems of incomplete checkpoints.

    A single file may have any contents. A folder, a pattern or an index is opened, and gives the files in
    use. Either file of a Megatron pair gives both. A problem begins with the checkpoint's path.

    Raises:
        OSError: A path is missing, or is a pipe or a device.
        FormatError: A token file is invalid.
        SafetensorError: An index is invalid, or no file of a checkpoint is valid.
    """
    files: dict[str, None] = {}
    problems: list[str] = []
    for path in paths:
        found, problem = _files_at(path)
        files.update(dict.fromkeys(found))
        if problem:
            problems.append(f"{path}: {problem}")
    return list(files), problems


def _files_at(path: str) -> tuple[list[str], str | None]:
    """Returns the files at a path, and the problem of an incomplete checkpoint."""
    path = located(path)
    stem, suffix = os.path.splitext(path)
    is_file = os.path.isfile(path)
    if is_file and suffix in _PAIR and all(os.path.isfile(stem + other) for other in _PAIR):
        return [stem + other for other in _PAIR], None
    if is_file and not path.endswith(_INDEX):
        return [path], None
    if os.path.lexists(path) and not is_file and not os.path.isdir(path):
        message = "not a regular file; pipes and devices have no pages"
        raise OSError(errno.EINVAL, message, path)
    with opened(path, ahead=False, partly=True) as found:
        if isinstance(found, Checkpoint):
            return list(found.files), problem_of(found)
        return [file for shard in found.shards for file in _with_index(shard)], None


def _with_index(shard: TokenShard) -> list[str]:
    """Returns the files of a shard: two for Megatron, otherwise one."""
    if shard.format != "megatron":
        return [shard.path]
    stem, _ = os.path.splitext(shard.path)
    return [stem + suffix for suffix in _PAIR]

"""Finds token files from a path, a pattern, a directory or a list."""

from __future__ import annotations

import errno
import glob
import os
import re
import reprlib
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

from pagestream import _native
from pagestream._common.paths import expanded

if TYPE_CHECKING:
    from pagestream._common.types import StrPath

# Suffixes of token files. Other files of a directory are ignored.
TOKEN_SUFFIXES = (".bin", ".npy", ".ds", ".idx", ".raw", ".tok", ".tokens", ".u16", ".u32", ".mds")

# Files next to token files that contain no tokens, for example the indices that Megatron caches.
_SIDE_FILE = re.compile(
    r"\.ds\.(index|metadata|loss)$|\.(json|jsonl|pkl|csv|csv\.gz|txt|md|log|ya?ml)$"
    r"|-(document|sample|shuffle|dataset|dataset_sample)_index\.npy$",
    re.IGNORECASE,
)

_WRITE = "write tokens in memory with write_tokens(path, arrays, dtype=...), and pass the path"

# Number of names that a message shows.
_SHOWN = 5


def token_paths(path: StrPath | Sequence[StrPath]) -> Sequence[StrPath]:
    """Returns the files in order.

    Args:
        path: A file (or the stem of a Megatron pair), a pattern or a directory; or a list of files, which is
            used as it is.

    Returns:
        Their paths. For a pattern or a directory they are in natural order: ``shard2`` before ``shard10``.

    Raises:
        TypeError: `path` is neither a path nor a sequence of paths.
        ValueError: A list contains both files of a Megatron pair.
        FileNotFoundError: A pattern matches nothing, a directory has no token files, or there is neither a
            file nor a Megatron pair of a name without a suffix.
        OSError: The directory cannot be listed.
    """
    if not isinstance(path, (str, bytes, os.PathLike)):
        # A set has another order in each process, and a dict is a mistake.
        if not isinstance(path, Sequence) or isinstance(path, (bytearray, memoryview, range)):
            message = (
                "token files are named by a path or a list of paths, whose order counts, not by "
                f"{reprlib.repr(path)}; {_remedy_for(path)}"
            )
            raise TypeError(message)
        for each in path:
            if not isinstance(each, (str, bytes, os.PathLike)):
                message = (
                    f"the list of token files has {reprlib.repr(each)}, which is not a path; "
                    f"{_remedy_for_item(each)}"
                )
                raise TypeError(message)
        files = [expanded(each) for each in path]  # type: ignore[arg-type]
        _refuse_halves({*files})
        return files
    plain = expanded(path)
    if os.path.isdir(plain):
        return _in_directory(plain)
    if not os.path.lexists(plain) and glob.has_magic(plain):
        return _matching(plain)
    _refuse_missing_stem(plain)
    return [plain]


def _refuse_missing_stem(path: str) -> None:
    """Rejects a name without a suffix that is neither a file nor the stem of a Megatron pair."""
    if os.path.splitext(path)[1] or any(_may_exist(f"{path}{suffix}") for suffix in ("", ".idx", ".bin")):
        return
    message = f"{os.strerror(errno.ENOENT)}. There is no Megatron pair {path}.idx and {path}.bin either"
    raise FileNotFoundError(errno.ENOENT, message, path)


def _may_exist(path: str) -> bool:
    try:
        os.lstat(path)
    except FileNotFoundError:
        return False
    except (OSError, ValueError):
        pass  # the path is opened later, and the error of opening it says why not
    return True


def _remedy_for(path: object) -> str:
    if isinstance(path, Iterable) and not isinstance(path, Sequence) and not hasattr(path, "shape"):
        return "use sorted() on what has no order"
    return _WRITE


def _remedy_for_item(item: object) -> str:
    # A list, a corpus or a path with its weight.
    if not hasattr(item, "shards") and not isinstance(item, tuple):
        return _WRITE
    return "to draw from several corpora, pass a Mixture: Mixture([(path, 0.7), (other_path, 0.3)])"


def _in_directory(folder: str) -> list[str]:
    with os.scandir(folder) as entries:
        # Keep a dangling link, because otherwise the corpus would silently lack its file.
        files = {entry.name: entry.path for entry in entries if entry.is_file() or _is_dangling(entry)}
    found = [
        path
        for name, path in files.items()
        if name.lower().endswith(TOKEN_SUFFIXES) and not name.startswith(".")
    ]
    chosen = _without_side_files(found)
    if not chosen:
        others = ", ".join(sorted(files)[:_SHOWN]) or "no files at all"
        has_weights = any(name.endswith(".safetensors") for name in files)
        remedy = (
            "open weights with open_checkpoint" if has_weights else "open_tokens also takes a list of files"
        )
        message = (
            f"no token files in this directory: found {others}; expected names that end in "
            f"{', '.join(TOKEN_SUFFIXES)}; {remedy}"
        )
        raise FileNotFoundError(errno.ENOENT, message, folder)
    return chosen


def _is_dangling(entry: os.DirEntry[str]) -> bool:
    return entry.is_symlink() and not os.path.exists(entry.path)


def _refuse_halves(paths: set[str]) -> None:
    """Rejects a list that names a Megatron pair by both files, for example a result of ``glob``."""
    for path in sorted(paths):
        if path.endswith(".idx") and f"{path[:-4]}.bin" in paths:
            message = (
                f"the list has {path} and {path[:-4]}.bin, which are one Megatron pair, and its tokens would "
                "count twice; list one of the two files"
            )
            raise ValueError(message)


def _matching(pattern: str) -> list[str]:
    matches = [path for path in glob.glob(pattern, recursive=True) if not os.path.isdir(path)]
    chosen = _without_side_files(matches)
    if not chosen:
        found = f"{len(matches)} side files" if matches else "nothing"
        message = f"no token files match this pattern: found {found}, expected at least one file"
        raise FileNotFoundError(errno.ENOENT, message, pattern)
    return chosen


def _without_side_files(paths: list[str]) -> list[str]:
    """Returns token files in natural order. The ``.bin`` of a Megatron pair stands for both."""
    kept = {path for path in paths if not _SIDE_FILE.search(path)}
    pairs = {path for path in kept if path.endswith(".idx") and path[:-4] + ".bin" in kept}
    return _native.natural_sorted([*(kept - pairs)])

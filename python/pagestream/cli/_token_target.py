"""The output file of ``pagestream tokenize``: its format, its type, and which files it must not replace."""

from __future__ import annotations

import errno
import os
import stat
from typing import Literal

import numpy as np

from pagestream import _native
from pagestream.cli._texts import TEXT_SUFFIXES

Format = Literal["raw", "npy", "llmc", "megatron"]

_FORMATS: dict[str, Format] = {".npy": "npy", ".idx": "megatron"}
_TOKEN_SUFFIXES = (".bin", ".npy", ".idx", ".tokens")
# Enough bytes to distinguish text from tokens.
_LOOK_BYTES = 64 << 10
_CONTROL = frozenset(range(32)) - frozenset(b"\t\n\v\f\r\x1b")


def format_of(out: str) -> Format:
    """Returns the format that a file's name indicates."""
    return _FORMATS.get(_suffix(out), "raw")


def dtype_for(format: Format, given: str | None, largest: int) -> str:
    """Returns the type of tokens: the given type, or otherwise the smallest usual type.

    Args:
        format: The format of the file.
        given: The user's choice.
        largest: The largest token of the vocabulary.

    Raises:
        ValueError: The format lacks the type, or the type cannot hold the vocabulary.
    """
    # Megatron has no uint32.
    usual = ("uint16", "int32" if format == "megatron" else "uint32")
    dtype = given or (usual[0] if largest <= np.iinfo(usual[0]).max else usual[1])
    known = {"llmc": tuple(_native.LLMC_KINDS), "megatron": tuple(_native.MEGATRON_CODES)}.get(
        format, _native.TOKEN_DTYPES
    )
    if dtype not in known:
        message = f"--dtype {dtype}: tokens of the format {format} are of type {', '.join(known)}"
        raise ValueError(message)
    most = np.iinfo(dtype).max
    if largest > most:
        message = (
            f"--dtype {dtype}: the vocabulary goes up to {largest}, which does not fit in {dtype} "
            f"(up to {most}); leave --dtype out for a type that fits"
        )
        raise ValueError(message)
    return dtype


def refuse_what_is_not_ours(out: str, format: Format, sources: list[str]) -> None:
    """Raises instead of replacing a file that is not a token file.

    Raises:
        ValueError: The file's name or content shows that it is text, or it is one of the sources.
        OSError: The path is a directory or a device, or its folder does not exist.
    """
    suffix = _suffix(out)
    if suffix in TEXT_SUFFIXES or (suffix and suffix in map(_suffix, sources)):
        message = (
            f"{out}: the last argument is the token file to write, but {suffix} is the suffix of a text; "
            "name the token file after the texts, for example train.bin"
        )
        raise ValueError(message)
    folder = os.path.dirname(os.path.realpath(out) if os.path.islink(out) else out) or os.curdir
    if not os.path.isdir(folder):
        raise FileNotFoundError(errno.ENOENT, "no such folder for the token file", folder)
    for path in files_of(out, format):
        if os.path.exists(path):
            _refuse_to_replace(path, sources)


def files_of(out: str, format: Format) -> list[str]:
    """Returns the files that are written: two for Megatron, otherwise one."""
    if format != "megatron":
        return [out]
    stem, suffix = os.path.splitext(out)
    name = stem if suffix in {".bin", ".idx"} else out
    return [f"{name}.bin", f"{name}.idx"]


def _refuse_to_replace(path: str, sources: list[str]) -> None:
    kind = os.stat(path).st_mode
    if stat.S_ISDIR(kind):
        raise IsADirectoryError(errno.EISDIR, "tokens are written to a file, but this is a directory", path)
    if not stat.S_ISREG(kind):
        raise OSError(errno.EINVAL, "tokens are written to a file, not to a device, FIFO or socket", path)
    for source in sources:
        if os.path.exists(source) and os.path.samefile(path, source):
            message = f"{path}: it is the text {source}, which the tokens would replace; name another file"
            raise ValueError(message)
    suffix = _suffix(path)
    if suffix in _TOKEN_SUFFIXES or (not suffix and not _is_text(path)):
        return
    what = (
        f"its suffix is not that of a token file ({', '.join(_TOKEN_SUFFIXES)})" if suffix else "it is text"
    )
    message = f"{path}: it exists and is not replaced, because {what}; remove it, or name another file"
    raise ValueError(message)


def _is_text(path: str) -> bool:
    with open(path, "rb") as file:
        found = file.read(_LOOK_BYTES)
    try:
        # The last character may be incomplete.
        found[: -len("\U0010ffff".encode())].decode()
    except UnicodeDecodeError:
        return False
    return bool(found) and _CONTROL.isdisjoint(found)


def _suffix(path: str) -> str:
    return os.path.splitext(path)[1].lower()

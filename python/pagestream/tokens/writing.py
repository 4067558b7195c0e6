"""`write_tokens`: writes token files for other projects."""

from __future__ import annotations

import itertools
import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import IO, Any, Literal

import numpy as np
import numpy.typing as npt

from pagestream import _native
from pagestream._common.atomic_write import Replacement
from pagestream._common.checks import one_of
from pagestream._common.dtype_names import AnyDtype, dtype_name
from pagestream._common.keywords import advises
from pagestream._common.paths import expanded
from pagestream._common.progress import Progress, reporting
from pagestream._common.public import set_module
from pagestream._common.types import StrPath

__all__ = ["write_tokens"]

# Number of tokens checked, converted and written at a time.
_CHUNK_TOKENS = 1 << 20
_INT32_MAX = (1 << 31) - 1

_LLMC_HEADER_BYTES = 1024
_NPY_HEADER_BYTES = 128


@set_module("pagestream")
@advises("write_tokens")
def write_tokens(
    path: StrPath,
    arrays: npt.ArrayLike | Iterable[npt.ArrayLike],
    *,
    dtype: AnyDtype,
    format: Literal["raw", "npy", "llmc", "megatron"] = "raw",
    documents: Sequence[int] | npt.NDArray[Any] | None = None,
    progress: Progress = False,
) -> int:
    """Writes tokens to a file as a stream: memory does not grow with the number of tokens.

    The file appears either complete or not at all. It is written under another name in the same directory,
    flushed to the disk (fsync), and renamed. An error or Ctrl-C leaves nothing behind. Symbolic links are
    followed. A file that replaces another gets its permissions.

    Args:
        path: The file. A leading ``~`` is the home directory. For ``"megatron"`` the ``.bin``, the ``.idx``,
            or their common stem. The ``.idx`` is renamed last, and an old one is removed before, so that an
            index never belongs to other tokens.
        arrays: A 1-d array of integers; or an iterable of integers, for example the list that a tokenizer
            returns; or an iterable of arrays or lists, which are written one after another.
        dtype: The type of the tokens in the file. A value that does not fit is rejected, never wrapped.
        format: ``"raw"`` (only tokens), ``"npy"`` (NumPy), ``"llmc"`` (llm.c and modded-nanogpt: ``uint16``,
            or ``uint32`` as for Llama 3), or ``"megatron"`` (``.idx`` and ``.bin``).
        documents: Only for ``"megatron"``: the first token of each document, followed by the number of
            tokens, as in `Documents.starts`. None means that each array is a document, and that an iterable
            of integers is a single document.
        progress: True for a progress bar, or a callable that gets the bytes written and the total bytes (0 if
            ``arrays`` is an iterable of unknown size).

    Returns:
        The number of tokens.

    Raises:
        ValueError: A token does not fit into ``dtype``, ``documents`` do not match the tokens, or there are
            more tokens than the format can count (llm.c: 2**31 - 1).
        TypeError: `arrays` are not 1-d arrays of integers; or they are ``bytes``, which do not show the width
            of a token.
        OSError: The file cannot be written; with ``errno`` and ``filename``.

    Examples:
        >>> import numpy as np
        >>> from pagestream import open_tokens, write_tokens
        >>> write_tokens("shard.bin", [np.arange(5), np.arange(3)], dtype="uint16", format="llmc")
        8
        >>> open_tokens("shard.bin")[3:7]
        array([3, 4, 0, 1], dtype=uint16)
        >>> write_tokens("ids.bin", [50256, 15496, 995], dtype="uint16")
        3
    """
    kind, path = _token_dtype(dtype, format), expanded(path)
    if documents is not None and format != "megatron":
        message = f'format="{format}" does not record documents; use "megatron", or leave documents out'
        raise ValueError(message)
    with reporting(progress, _total_bytes(arrays, kind), "writing tokens") as report:
        stream = _Stream(_each_document(arrays), kind, report)
        if format == "megatron":
            _write_megatron(path, stream, None if documents is None else _bounds(documents))
        else:
            _write_one(path, stream, format)
    return stream.tokens


class _Stream:
    """Documents, each an iterable of arrays, checked and converted to the file's type chunk by chunk."""

    def __init__(
        self,
        documents: Iterable[Iterable[npt.ArrayLike]],
        dtype: np.dtype[Any],
        report: Callable[[int], object] | None,
    ) -> None:
        self.dtype = dtype
        self.tokens = 0
        self._documents = documents
        self._report = report

    def write_to(self, file: IO[bytes], limit: int | None = None) -> Iterator[int]:
        """Writes the documents, and yields the length of each."""
        for number, arrays in enumerate(self._documents):
            begin = self.tokens
            for given in arrays:
                array = _checked(given, number)
                if limit is not None and self.tokens + len(array) > limit:
                    message = (
                        f"array {number} makes {self.tokens + len(array)} tokens, but a file of this "
                        f"format holds at most {limit}; write several files"
                    )
                    raise ValueError(message)
                for first in range(0, len(array), _CHUNK_TOKENS):
                    chunk = array[first : first + _CHUNK_TOKENS]
                    _refuse_what_does_not_fit(chunk, self.dtype, number, self.tokens - begin)
                    file.write(np.ascontiguousarray(chunk, self.dtype).data)
                    self.tokens += len(chunk)
                    if self._report is not None:
                        self._report(self.tokens * self.dtype.itemsize)
            yield self.tokens - begin


def _write_one(path: StrPath, stream: _Stream, format: str) -> None:
    header_bytes = {"raw": 0, "npy": _NPY_HEADER_BYTES, "llmc": _LLMC_HEADER_BYTES}[format]
    with Replacement() as replacement:
        file = replacement.open(path, "tokens")
        file.write(bytes(header_bytes))
        for _ in stream.write_to(file, _INT32_MAX if format == "llmc" else None):
            pass
        file.seek(0)
        if format == "llmc":
            words = (*_native.LLMC_KINDS[stream.dtype.name], stream.tokens)
            file.write(np.array(words, "<i4").tobytes())
        elif format == "npy":
            # Such a header has the same length for any number of tokens.
            header = {"descr": stream.dtype.str, "fortran_order": False, "shape": (stream.tokens,)}
            np.lib.format.write_array_header_1_0(file, header)


def _write_megatron(path: StrPath, stream: _Stream, bounds: npt.NDArray[np.int64] | None) -> None:
    stem, suffix = os.path.splitext(os.fsdecode(path))
    name = stem if suffix in {".bin", ".idx"} else stem + suffix
    with Replacement() as replacement:
        data = replacement.open(f"{name}.bin", "tokens")
        index = _MegatronIndex(replacement.scratch(), replacement.scratch())
        for length in stream.write_to(data):
            if bounds is None:
                index.add(length)
        if bounds is not None:
            if bounds[-1] != stream.tokens:
                message = f"documents end at token {bounds[-1]}, but there are {stream.tokens} tokens"
                raise ValueError(message)
            for length in np.diff(bounds).tolist():
                index.add(length)
        index.write_to(replacement.open(f"{name}.idx", "tokens"), stream.dtype)


class _MegatronIndex:
    """The arrays of an ``.idx``, stored in scratch files until their lengths are known."""

    def __init__(self, lengths: IO[bytes], documents: IO[bytes]) -> None:
        self._lengths = lengths
        self._documents = documents
        self._sequences = 0
        self._count = 0

    def add(self, length: int) -> None:
        """Adds a document."""
        self._documents.write(self._sequences.to_bytes(8, "little"))
        self._count += 1
        # A sequence's length is an int32, so a longer document has several sequences.
        rest = length
        while True:
            sequence = min(rest, _INT32_MAX)
            self._lengths.write(sequence.to_bytes(4, "little"))
            self._sequences += 1
            rest -= sequence
            if rest == 0:
                return

    def write_to(self, file: IO[bytes], dtype: np.dtype[Any]) -> None:
        self._documents.write(self._sequences.to_bytes(8, "little"))
        file.write(b"MMIDIDX\0\0" + (1).to_bytes(8, "little"))
        file.write(_native.MEGATRON_CODES[dtype.name].to_bytes(1, "little"))
        file.write(self._sequences.to_bytes(8, "little") + (self._count + 1).to_bytes(8, "little"))
        for block in _blocks(self._lengths):
            file.write(block)
        end = 0
        for block in _blocks(self._lengths):
            ends = end + np.cumsum(np.frombuffer(block, "<i4"), dtype="<i8")
            starts = np.concatenate(([end], ends[:-1])).astype("<i8")
            file.write((starts * dtype.itemsize).tobytes())
            end = int(ends[-1])
        for block in _blocks(self._documents):
            file.write(block)


def _blocks(file: IO[bytes]) -> Iterator[bytes]:
    file.seek(0)
    while block := file.read(8 * _CHUNK_TOKENS):
        yield block


def _token_dtype(dtype: AnyDtype, format: str) -> np.dtype[Any]:
    found: np.dtype[Any] = np.dtype(dtype_name(dtype))
    known = {
        "raw": _native.TOKEN_DTYPES,
        "npy": _native.TOKEN_DTYPES,
        "llmc": _native.LLMC_KINDS,
        "megatron": _native.MEGATRON_CODES,
    }
    one_of("format", format, tuple(known))
    if found.name not in known[format]:
        message = f'tokens of format="{format}" are of type {", ".join(known[format])}, not {found.name}'
        raise ValueError(message)
    if not found.isnative:
        message = f"tokens are written little-endian, not as {found.str}"
        raise ValueError(message)
    return found.newbyteorder("<")


def _each_document(arrays: npt.ArrayLike | Iterable[npt.ArrayLike]) -> Iterable[Iterable[Any]]:
    """Returns the arrays of each document. Each array is a document, and all numbers together are one."""
    # An array, or an object that converts to one (a tensor), is a single array; iterating it would yield
    # numbers.
    if isinstance(arrays, np.ndarray) or hasattr(arrays, "__array__"):
        return [[arrays]]
    if isinstance(arrays, (bytes, bytearray, memoryview)):
        message = (
            f"tokens are integers, and {type(arrays).__name__} does not say how many bytes a token has; "
            "pass np.frombuffer(data, dtype)"
        )
        raise TypeError(message)
    items = iter(arrays)  # type: ignore[arg-type]
    for first in items:
        items = itertools.chain([first], items)
        if _is_number(first):
            return [_lists(items)]
        break
    return ([array] for array in items)


def _lists(numbers: Iterator[Any]) -> Iterator[list[Any]]:
    """Yields numbers in lists of one chunk each, so that an endless iterator takes limited memory."""
    while chunk := [*itertools.islice(numbers, _CHUNK_TOKENS)]:
        yield chunk


def _is_number(item: object) -> bool:
    # Strings are also scalars. Treated as numbers, they get the better error.
    return np.isscalar(item) or getattr(item, "ndim", None) == 0


def _total_bytes(arrays: object, dtype: np.dtype[Any]) -> int:
    parts = arrays if isinstance(arrays, (list, tuple, range)) else [arrays]
    if parts and _is_number(parts[0]):
        return len(parts) * dtype.itemsize
    sizes = [part.size for part in parts if isinstance(part, np.ndarray)]
    return sum(sizes) * dtype.itemsize if len(sizes) == len(parts) else 0


def _checked(given: npt.ArrayLike, number: int) -> npt.NDArray[Any]:
    array = np.asarray(given)
    if array.ndim != 1:
        message = (
            f"array {number} has the shape {array.shape}; tokens are one-dimensional "
            "(pass a list of arrays, and reshape(-1) arrays with rows)"
        )
        raise TypeError(message)
    if array.dtype.kind not in "iu" and array.size:
        # Integers beyond 64 bits fit into no type. The caller reports this.
        if isinstance(given, list) and all(type(token) is int for token in given):
            return np.array(given, object)
        message = f"array {number} is of type {array.dtype}; tokens are integers"
        raise TypeError(message)
    return array


def _refuse_what_does_not_fit(chunk: npt.NDArray[Any], dtype: np.dtype[Any], number: int, first: int) -> None:
    if not chunk.size or np.can_cast(chunk.dtype, dtype, "safe"):
        return
    info = np.iinfo(dtype)
    if int(chunk.min()) >= int(info.min) and int(chunk.max()) <= int(info.max):
        return
    # Compare as Python integers, because NumPy has no common type for int64 and uint64.
    position = next(at for at, token in enumerate(chunk.tolist()) if not info.min <= token <= info.max)
    message = (
        f"token {first + position} of array {number} is {chunk[position]}, which does not fit in "
        f"{dtype.name} ({info.min} to {info.max}); use a larger dtype"
    )
    raise ValueError(message)


def _bounds(documents: Sequence[int] | npt.NDArray[Any]) -> npt.NDArray[np.int64]:
    bounds = np.asarray(documents)
    if bounds.ndim != 1 or not bounds.size or bounds.dtype.kind not in "iu":
        message = "documents are a sequence of integers: where each begins, and at last the number of tokens"
        raise ValueError(message)
    if int(bounds.max()) > np.iinfo("i8").max:
        message = f"documents end at token {bounds.max()}, which is more than a file can have"
        raise ValueError(message)
    bounds = bounds.astype("i8")
    if bounds[0] != 0:
        message = f"the first document begins at token {bounds[0]}; expected 0"
        raise ValueError(message)
    backwards = np.flatnonzero(bounds[1:] < bounds[:-1])
    if backwards.size:
        at = int(backwards[0])
        message = f"document {at + 1} begins at token {bounds[at + 1]}, before document {at} at {bounds[at]}"
        raise ValueError(message)
    return bounds

"""Token files: `open_tokens`, `TokenCorpus`."""

from __future__ import annotations

import errno
import hashlib
import logging
import os
import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal, SupportsIndex, TypeAlias, overload

import numpy as np
import numpy.typing as npt

from pagestream import _native
from pagestream._common import environment
from pagestream._common.amounts import count
from pagestream._common.checks import element, one_of, only_with
from pagestream._common.closing import HoldsFiles
from pagestream._common.dtype_names import AnyDtype, dtype_name
from pagestream._common.html import page, table
from pagestream._common.keywords import advises
from pagestream._common.public import set_module
from pagestream._common.types import Mode, StrPath
from pagestream.errors import FileChangedError
from pagestream.tokens.documents import Documents
from pagestream.tokens.memmaps import file_range
from pagestream.tokens.parts import part_range
from pagestream.tokens.paths import token_paths
from pagestream.tokens.splits import check_splits

__all__ = ["TokenCorpus", "TokenShard", "open_tokens"]

_log = logging.getLogger("pagestream.tokens")

# Number of files that a notebook shows.
_SHOWN = 10

Format = Literal["raw", "npy", "llmc", "megatron", "datatrove"]
TokenFiles: TypeAlias = StrPath | Sequence[StrPath] | np.memmap[Any, np.dtype[Any]]

# Number of tokens at each end that are compared.
_COMPARED = 1024


@set_module("pagestream")
@dataclass(frozen=True)
class TokenShard:
    """A file of a corpus.

    Attributes:
        path: Its absolute path; for a Megatron pair the path of the ``.bin``.
        format: ``"raw"``, ``"npy"``, ``"llmc"``, ``"megatron"`` or ``"datatrove"``.
        tokens: Number of its tokens in the corpus: all, except in a `TokenCorpus.part`.
        start: Position of its first token in the corpus.
        mode: How it is read, as determined when it was first opened: ``"shared"``, ``"private"`` or
            ``"read"``; see `MappedFile`.
        reason: Why no better mode is in use; None for the first choice.
        file_start: Number of tokens in the file before the corpus's tokens, in the order of its index.
        file_tokens: Number of tokens in the file, or in its Megatron index.
        is_view: Whether a Megatron index reorders, omits or repeats tokens.

    Examples:
        >>> from pagestream import open_tokens
        >>> open_tokens("tokens.bin").shards[0].tokens
        4096
    """

    path: str
    format: str
    tokens: int
    start: int
    mode: str
    reason: str | None
    file_start: int
    file_tokens: int
    is_view: bool = False


# Type, format and mode.
_OpenedWith = tuple[str | None, Format | None, str]


@set_module("pagestream")
class TokenCorpus(HoldsFiles):
    """Token files as one sequence of tokens. `open_tokens` creates it.

    ``len(corpus)`` is the number of tokens, ``corpus[7]`` is an int, and ``corpus[a:b]`` is a read-only 1-d
    array. The array is a view of the mapping, without a copy, if the range lies in one mapped file, and
    otherwise a copy. A list or an array of integers selects tokens, as in NumPy: ``corpus[[0, -1]]`` is a new
    array.

    At most 1024 files stay open, or fewer if ``ulimit -n`` is low. Other files are opened again when they are
    read, and must not have changed.

    Pickling stores the paths. Unpickling opens the files again and checks the number of tokens. `part`
    returns a corpus of some of the tokens, for example for validation.

    Examples:
        >>> from pagestream import open_tokens
        >>> tokens = open_tokens("tokens.bin")
        >>> len(tokens), tokens[7], tokens[10:14]
        (4096, 7, array([10, 11, 12, 13], dtype=uint16))
        >>> tokens.shape, tokens.nbytes, tokens[[7, 2, -1]]
        ((4096,), 8192, array([   7,    2, 4095], dtype=uint16))
    """

    __slots__ = ("__weakref__", "_files", "_opened_with")

    _files: _native.TokenCorpus

    def __init__(self, files: _native.TokenCorpus, opened_with: _OpenedWith) -> None:
        """Wraps the native object. `open_tokens` calls it."""
        self._files = files
        self._opened_with = opened_with

    @property
    def dtype(self) -> np.dtype[Any]:
        """The type of the tokens in the files."""
        return np.dtype(self._files.dtype_name)

    @property
    def ndim(self) -> int:
        """1, because tokens have one dimension."""
        return 1

    @property
    def shape(self) -> tuple[int]:
        """The number of tokens, in the form of an array's shape."""
        return (len(self),)

    @property
    def nbytes(self) -> int:
        """Size of the tokens in the files in bytes, without headers and indexes."""
        return len(self) * self.dtype.itemsize

    @property
    def shards(self) -> tuple[TokenShard, ...]:
        """The files, in order."""
        return tuple(TokenShard(**facts) for facts in self._files.shards())

    @property
    def documents(self) -> Documents | None:
        """The documents as a sequence of arrays; None if the format does not record them.

        Megatron's files record them, and datatrove's do if each has its ``.index``.
        """
        return None if self._files.document_count is None else Documents(self, self._files)

    @property
    def fingerprint(self) -> str:
        """16 hexadecimal digits that stay the same as long as the data does.

        They cover the type and the format. For each file in order, they cover its size, its number of tokens,
        1024 bytes of tokens from its beginning, middle and end, and the size and end of the index of its
        documents. For a reordered Megatron index they cover the whole order, and for a `part` its first
        token. They ignore paths and times. The first call reads each file at three places. A change between
        those places that keeps all sizes is not detected.

        Raises:
            FileChangedError: A file is no longer the file that was opened.
            MappedReadError: A file's storage failed.
        """
        return f"{self._files.fingerprint():016x}"

    def __len__(self) -> int:
        """Returns the number of tokens."""
        return self._files.tokens

    # Arrays come first: type checkers also consider them integers, because zero-dimensional arrays are.
    @overload
    def __getitem__(  # type: ignore[overload-overlap]
        self, index: slice | list[int] | npt.NDArray[np.integer[Any]]
    ) -> npt.NDArray[Any]: ...
    @overload
    def __getitem__(self, index: SupportsIndex) -> int: ...
    def __getitem__(
        self, index: SupportsIndex | slice | list[int] | npt.NDArray[np.integer[Any]]
    ) -> int | npt.NDArray[Any]:
        """Returns a token as an int, a slice as a read-only array, or the tokens at several indices.

        Raises:
            IndexError: A token lies outside the corpus.
            TypeError: The index is not an integer, a slice, or a list or an array of integers.
            MappedReadError: A file was truncated, or its storage failed.
        """
        if isinstance(index, slice):
            picked = range(*index.indices(len(self)))
            if not picked:
                return self._range(0, 0)
            low, high = min(picked[0], picked[-1]), max(picked[0], picked[-1]) + 1
            return self._range(low, high)[:: picked.step]
        if isinstance(index, list) or getattr(index, "ndim", 0) > 0:
            return self._picked(np.asarray(index))
        position = element(index, len(self), "token")
        return int(self.read(position, position + 1)[0])

    def _picked(self, numbers: npt.NDArray[Any]) -> npt.NDArray[Any]:
        if not numbers.size:
            return np.empty(numbers.shape, self.dtype)
        if numbers.dtype.kind not in "iu":
            message = (
                f"tokens are picked by integers, not by an array of {numbers.dtype}; "
                "in place of a mask pass np.flatnonzero(mask)"
            )
            raise TypeError(message)
        least, most = int(numbers.min()), int(numbers.max())
        for number in (least, most):
            element(number, len(self), "token")
        positions = numbers.astype(np.int64).reshape(-1)
        positions[positions < 0] += len(self)
        out = np.empty(positions.shape, self.dtype)
        # Windows of one token.
        self._files.assemble(positions.tolist(), 1, 1, "none", "raw", None, out, None)
        return out.reshape(numbers.shape)

    def _range(self, start: int, stop: int) -> npt.NDArray[Any]:
        view = self._files.view(start, stop)
        if view is not None:
            return np.frombuffer(view, self.dtype)
        copy = self.read(start, stop)
        copy.flags.writeable = False
        return copy

    def read(self, start: int, stop: int) -> npt.NDArray[Any]:
        """Copies tokens ``[start, stop)``.

        Args:
            start: The first token.
            stop: The token after the last one.

        Returns:
            A 1-d array of `dtype`, which belongs to the caller.

        Raises:
            IndexError: The range does not lie inside the corpus.
            MappedReadError: A file was truncated, or its storage failed.
            FileChangedError: A file was rewritten since it was opened.

        Examples:
            >>> from pagestream import open_tokens
            >>> open_tokens("tokens.bin").read(10, 14)
            array([10, 11, 12, 13], dtype=uint16)
        """
        if not 0 <= start <= stop <= len(self):
            message = f"tokens {start} to {stop} of a corpus of {len(self)}"
            raise IndexError(message)
        out = np.empty(stop - start, self.dtype)
        self._files.read_into(start, stop, out)
        return out

    def part(self, start: float, stop: float) -> TokenCorpus:
        """Returns tokens ``[start, stop)`` as a separate corpus, for example to hold out validation data.

        Loaders, datasets and mixtures accept it like any other corpus. No window reaches into another part,
        not even with its target. The part reads through the open files of this corpus. If the files record
        documents, their index is read, and a document that crosses an end is cut there. Unlike the array
        ``corpus[a:b]``, a part has shards and documents.

        Close the part and the corpus separately, in any order. The last one closes the files.

        Args:
            start: The first token, as an int. If `start` or `stop` is a float, both are fractions of the
                corpus from 0 to 1, rounded to the nearest token: ``part(0, 0.9)``, ``part(0.9, 1)``.
            stop: The token after the last one, or a fraction.

        Returns:
            The part. Its tokens are counted from 0.

        Raises:
            ValueError: The part is not inside the corpus, a fraction is not between 0 and 1, or the corpus is
                closed.
            FormatError: The index of the documents is damaged.
            OSError: The index cannot be read.

        Examples:
            >>> from pagestream import open_tokens
            >>> tokens = open_tokens("tokens.bin")
            >>> train, validation = tokens.part(0, 0.9), tokens.part(0.9, 1)
            >>> len(train), len(validation), validation[0]
            (3686, 410, 3686)
            >>> len(tokens.part(1000, 1500))
            500
        """
        return TokenCorpus(self._files.part(*part_range(start, stop, len(self))), self._opened_with)

    def __array__(self, dtype: npt.DTypeLike | None = None, copy: bool | None = None) -> npt.NDArray[Any]:  # noqa: FBT001 - NumPy's protocol
        """Returns all tokens as an array, for ``np.asarray(tokens)``: read natively, not token by token.

        Args:
            dtype: Another type to convert to; None for the files' type.
            copy: None or True for an array that belongs to the caller. False for a read-only view without a
                copy, which exists only for a single mapped file.

        Raises:
            ValueError: ``copy=False`` is given, but a copy is needed.
            MappedReadError: A file was truncated, or its storage failed.

        Examples:
            >>> import numpy as np
            >>> from pagestream import open_tokens
            >>> np.asarray(open_tokens("tokens.bin"))[-2:]
            array([4094, 4095], dtype=uint16)
        """
        wanted = self.dtype if dtype is None else np.dtype(dtype)
        if copy is False:
            view = self._files.view(0, len(self)) if wanted == self.dtype else None
            if view is None:
                message = "copy=False: only the tokens of one mapped file, in its own type, need no copy"
                raise ValueError(message)
            return np.frombuffer(view, self.dtype)
        return self.read(0, len(self)).astype(wanted, copy=False)

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickles the paths and the arguments of opening."""
        shards = self.shards
        files = [(shard.path, shard.file_tokens) for shard in shards]
        first = shards[0].file_start
        return _open_again, (files, (first, first + len(self)), *self._opened_with)

    def __repr__(self) -> str:
        """Shows size, type and files. Corpora of the same files have equal texts."""
        shards = self.shards
        files = shards[0].path
        if len(shards) > 1:
            names = "\0".join(shard.path for shard in shards).encode(errors="surrogateescape")
            digest = hashlib.blake2b(names, digest_size=4).hexdigest()
            files = f"{len(shards)} files from {files} on (paths {digest})"
        total = sum(shard.file_tokens for shard in shards)
        if len(self) < total:
            first = shards[0].file_start
            files += f", tokens {first} to {first + len(self)} of {total}"
        return f"<{type(self).__name__} {len(self)} {self.dtype} tokens in {files}>"

    def _repr_html_(self) -> str:
        """Shows size, type and the first files, for notebooks."""
        shards, documents = self.shards, self.documents
        title = f"{type(self).__name__}: {count(len(self), 'token')} of {self.dtype}, {shards[0].format}"
        if documents is not None:
            title += f", {count(len(documents), 'document')}"
        shown = shards[:_SHOWN]
        rest = len(shards) - len(shown)
        return page(
            f"{title}, in {count(len(shards), 'file')}",
            table(
                ("file", "tokens", "mode"),
                [(shard.path, f"{shard.tokens:,}", shard.mode) for shard in shown],
                f"and {count(rest, 'file')} more" if rest else "",
            ),
        )


def _dtype_name(dtype: np.dtype[Any]) -> str:
    if not dtype.isnative:
        message = f"tokens are little-endian; {dtype.str} files must be written again"
        raise ValueError(message)
    return dtype.name


def _open(paths: Sequence[StrPath], opened_with: _OpenedWith) -> TokenCorpus:
    corpus = TokenCorpus(
        _native.TokenCorpus([os.fsencode(path) for path in paths], *opened_with), opened_with
    )
    # Gather the facts of thousands of files only if the log needs them.
    if _log.isEnabledFor(logging.INFO):
        for shard in corpus.shards:
            environment.log_opening(shard.path, shard.mode, shard.reason)
        _log.info("opened %r", corpus)
    return corpus


def _open_memmap(array: npt.NDArray[Any], mode: Mode) -> TokenCorpus:
    file, first, stop = file_range(array)
    corpus = _open([file], (_dtype_name(array.dtype), "raw", mode))
    if stop > len(corpus):
        message = f"it has {len(corpus)} tokens, but the memmap has token {stop - 1}"
        raise FileChangedError(errno.ESTALE, message, file)
    part = corpus if (first, stop) == (0, len(corpus)) else corpus.part(first, stop)
    for begin in (0, max(0, stop - first - _COMPARED)):
        end = min(begin + _COMPARED, len(part))
        if not np.array_equal(part[begin:end], array[begin:end]):
            message = f"tokens {first + begin} to {first + end} are not those of the memmap; pass the path"
            raise FileChangedError(errno.ESTALE, message, file)
    return part


def native_corpus(corpus: TokenCorpus) -> _native.TokenCorpus:
    """Returns the native object of a corpus, for the `pagestream` packages that gather from it."""
    return corpus._files  # noqa: SLF001 - this module's own


def _open_again(
    files: list[tuple[str, int]],
    part: tuple[int, int],
    dtype: str | None,
    format: Format | None,
    mode: str,
) -> TokenCorpus:
    corpus = _open([path for path, _ in files], (dtype, format, mode))
    for shard, (path, tokens) in zip(corpus.shards, files, strict=True):
        if shard.tokens != tokens:
            message = f"it has {shard.tokens} tokens, but had {tokens} when it was opened first"
            raise FileChangedError(errno.ESTALE, message, path)
    return corpus if part == (0, len(corpus)) else corpus.part(*part)


@set_module("pagestream")
@advises("open_tokens")
def open_tokens(
    path: TokenFiles,
    *,
    dtype: AnyDtype | None = None,
    format: Format | None = None,
    mmap_mode: Mode | None = None,
) -> TokenCorpus:
    """Opens token files as one sequence of tokens.

    It reads only headers and the sequences of Megatron indexes, and builds no index.

    Args:
        path: A file; a pattern (``"data/*.bin"``, also ``**``); a directory, which stands for every token
            file in it except side files, but not in its subdirectories; or a list of files, which keeps its
            order and contains neither directories nor patterns. The files of a pattern or directory are in
            natural order (2 before 10). All must agree in format and type. A Megatron pair is named by its
            ``.idx``, its ``.bin`` or their common stem; its tokens are the sequences in the index, in the
            index's order. A directory with files of several splits, for example ``train.bin`` and
            ``val.bin``, or ``c4.bin`` and ``c4_val.bin``, is rejected. A pattern that matches several splits
            causes a warning. A leading ``~`` is the home directory. `path` may also be a one-dimensional
            ``numpy.memmap``, or a slice of one without a step. Its file is opened again by its path, as a raw
            file of the array's type, and the corpus has the array's part of it. Other arrays are rejected,
            because tokens are read from files.
        dtype: The type of the tokens. None means the type in the header, or ``uint16`` for raw files, which
            have no header. A type that contradicts a header is rejected, and so is a raw file that shows
            another width. ``format="raw"`` and `dtype` together override this.
        format: ``"raw"`` (only tokens), ``"npy"`` (NumPy, one-dimensional), ``"llmc"`` (llm.c and
            modded-nanogpt), ``"megatron"`` (``.idx`` and ``.bin``) or ``"datatrove"`` (``.ds``). None decides
            by the file's first bytes, then by the files next to it, and otherwise means raw. The headerless
            ``.npy`` files of OLMo and dolma are also raw.
        mmap_mode: How to open the files; see `MappedFile`. None means ``PAGESTREAM_MMAP_MODE`` or ``"auto"``.

    Returns:
        The corpus.

    Raises:
        FileNotFoundError: There is no such file, no match, or no token file in the directory.
        OSError: A file cannot be opened; with ``errno`` and ``filename``.
        FormatError: A file does not have its format; the message says what was found.
        ValueError: A list is empty, a word is unknown, or a directory has files of several splits; or a
            memmap has tokens that differ from its file's (mode ``"c"``), or has a step.
        TypeError: `path` is not a path, a sequence of paths, or a memmap of one dimension.
        FileChangedError: The path of a memmap now leads to other tokens.

    Warns:
        UserWarning: A pattern matches files of several splits, or a Megatron index lists only the beginning
            of its ``.bin``, or has a sequence that begins inside the previous sequence.

    Examples:
        >>> from pagestream import open_tokens
        >>> open_tokens(["tokens.bin", "tokens.bin"])[4094:4098]
        array([4094, 4095,    0,    1], dtype=uint16)
    """
    name = None if dtype is None else _dtype_name(np.dtype(dtype_name(dtype)))
    if format is not None:
        one_of("format", format, _native.FORMATS)
    mode = environment.mmap_mode(mmap_mode)
    if isinstance(path, np.ndarray):
        only_with("dtype", dtype, needed=False, needs="a path: this array has a type")
        only_with("format", format, needed=False, needs="a path: an array is opened as raw tokens")
        return _open_memmap(path, mode)
    files = token_paths(path)
    check_splits(path, files)
    corpus = _open(files, (name, format, mode))
    for file, listed, tokens in native_corpus(corpus).cut_short():
        message = (
            f"{file}: the Megatron index lists the first {count(listed, 'token')} of {tokens:,}, and the "
            "others are left out; build the index again unless this is on purpose"
        )
        warnings.warn(message, UserWarning, stacklevel=3)
    for index, number, place, (start, end) in native_corpus(corpus).overlaps():
        message = (
            f"{index}: sequence {number} begins at byte {place} of the .bin, inside the sequence before it "
            f"in the index, which has the bytes {start} to {end}; tokens in both are trained on twice, so "
            "build the index again unless this is on purpose"
        )
        warnings.warn(message, UserWarning, stacklevel=3)
    return corpus

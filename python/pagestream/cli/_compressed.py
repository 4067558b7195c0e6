"""Reads compressed text files as a stream: gzip, and Zstandard."""

from __future__ import annotations

import gzip
import io
import os
import zlib
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from pagestream.errors import FormatError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from pagestream._common.types import Buffer

_CHUNK_BYTES = 64 << 10


def suffix_of(path: str) -> str | None:
    """Returns ``".gz"`` or ``".zst"`` for a file that `opened` reads, otherwise None."""
    suffix = os.path.splitext(path)[1].lower()
    return suffix if suffix in _OPENERS else None


def refuse_without_package(path: str) -> None:
    """Rejects a Zstandard file if no package can read it.

    Raises:
        ImportError: Neither Python nor zstandard can read Zstandard.
    """
    if suffix_of(path) == ".zst":
        _decompressor(path)


@contextmanager
def opened(path: str) -> Iterator[io.BufferedIOBase]:
    """Opens a compressed file for reading its text.

    Raises:
        FormatError: The file is damaged or truncated.
        ImportError: As for `refuse_without_package`.
        OSError: The file cannot be read.
    """
    suffix = os.path.splitext(path)[1].lower()
    kind, open_file = _OPENERS[suffix]
    try:
        with open_file(path) as file:
            yield file
    except (EOFError, zlib.error, OSError) as error:
        # Errors of the system have a number.
        if isinstance(error, OSError) and error.errno is not None:
            raise
        message = f"{path}: not a {kind} file, or a damaged one: {error}; compress the text again"
        raise FormatError(message) from error


def _decompressor(path: str) -> Callable[[], Any]:
    """Returns a function that creates a decompressor, from Python 3.14 or zstandard.

    Both decompressors have the same methods.
    """
    try:
        from compression.zstd import ZstdDecompressor  # type: ignore[import-not-found,unused-ignore]
    except ImportError:
        pass
    else:
        return ZstdDecompressor  # type: ignore[no-any-return,unused-ignore]
    try:
        from zstandard import ZstdDecompressor as Context
    except ImportError as error:
        message = f"{path}: Zstandard files are read with zstandard: pip install 'pagestream[tokenize]'"
        raise ImportError(message) from error
    return lambda: Context().decompressobj()


class _Zstandard(io.RawIOBase):
    """The text of a file with one or more frames.

    zstandard's own reader accepts a truncated frame as complete.
    """

    def __init__(self, path: str) -> None:
        self._new = _decompressor(path)
        self._frame: Any = None  # None between frames
        self._file = open(path, "rb")  # noqa: SIM115 - `close` closes it
        self._compressed = self._text = b""

    def readable(self) -> bool:
        """Returns True."""
        return True

    def close(self) -> None:
        """Closes the file."""
        self._file.close()
        super().close()

    def readinto(self, buffer: Buffer, /) -> int:
        """Reads the next bytes of the text, or none at its end.

        Raises:
            EOFError: The last frame is incomplete.
            OSError: The file is not Zstandard, or cannot be read.
        """
        while not self._text:
            self._compressed = self._compressed or self._file.read(_CHUNK_BYTES)
            if not self._compressed:
                if self._frame is None:
                    return 0
                message = "it ends within a frame"
                raise EOFError(message)
            self._frame = self._frame or self._new()
            try:
                self._text = self._frame.decompress(self._compressed)
            except Exception as error:
                # Each package has its own error class.
                raise OSError(str(error)) from error
            self._compressed = b""
            if self._frame.eof:
                self._compressed, self._frame = self._frame.unused_data, None
        target = memoryview(buffer).cast("B")
        count = min(len(target), len(self._text))
        target[:count] = self._text[:count]
        self._text = self._text[count:]
        return count


def _gzip(path: str) -> io.BufferedIOBase:
    return gzip.open(path)


def _zstandard(path: str) -> io.BufferedIOBase:
    return io.BufferedReader(_Zstandard(path), _CHUNK_BYTES)


_OPENERS: dict[str, tuple[str, Callable[[str], io.BufferedIOBase]]] = {
    ".gz": ("gzip", _gzip),
    ".zst": ("Zstandard", _zstandard),
}

"""Documents of text files, JSON lines and Parquet files, in parts that each process takes one by one."""

from __future__ import annotations

import json
import os
import stat
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING, Any

from pagestream.cli import _compressed
from pagestream.cli._stamps import Stamp
from pagestream.errors import FormatError

if TYPE_CHECKING:
    from collections.abc import Iterator

# Approximate size of the parts of files with lines.
PART_BYTES = 4 << 20
# Number of Parquet rows in memory at a time.
_ROWS = 256
_JSON_LINES = (".jsonl", ".ndjson", ".json")
_PARQUET = ".parquet"
# Compressed files that cannot be read.
_REFUSED = (".bz2", ".xz", ".lz4", ".zip")
# Suffixes of text files. A file with another suffix may also be text.
TEXT_SUFFIXES = (
    *(*_JSON_LINES, _PARQUET, ".gz", ".zst", *_REFUSED),
    *(".txt", ".text", ".md", ".csv", ".tsv", ".html", ".xml"),
)


@dataclass(frozen=True)
class Part:
    """The unit of work of a process.

    Attributes:
        path: The file.
        kind: ``"text"`` if the file is a document; ``"lines"`` if each line is; ``"json"`` if a field of each
            line is; ``"parquet"`` if a field of each row is.
        start: The beginning of the part: a byte, or the number of a row group.
        end: The beginning of the next part. A line belongs to the part in which it begins. A compressed file
            is a single part, because reading can only begin at its start.
        field: The name of the field.
        nbytes: Size, for progress.
        stamp: The state of the part's file.
    """

    path: str
    kind: str
    start: int
    end: int
    field: str
    nbytes: int
    stamp: Stamp


def parts_of(path: str, field: str, *, lines: bool) -> list[Part]:
    """Returns the parts of a file, by its suffix. Files that are neither JSON lines nor Parquet are text.

    Raises:
        OSError: There is no such file.
        ValueError: The file has an unsupported compression, or is not a regular file.
        FormatError: The file should be a Parquet file, but is not.
        ImportError: The package for reading a Parquet or Zstandard file is not installed.
    """
    found = os.stat(path)
    if stat.S_ISDIR(found.st_mode):
        message = f"{path}: a directory; name the files in it"
        raise ValueError(message)
    if not stat.S_ISREG(found.st_mode):
        message = f"{path}: not a regular file, but a pipe or a device; write the text to a file first"
        raise ValueError(message)
    stamp, size_bytes = Stamp.of(found), found.st_size
    lower = path.lower()
    if lower.endswith(_REFUSED):
        message = f"{path}: of compressed files .gz and .zst are read; unpack it, or compress it in that way"
        raise ValueError(message)
    if compression := _compressed.suffix_of(path):
        _compressed.refuse_without_package(path)
        lower = lower.removesuffix(compression)
        if lower.endswith(_PARQUET):
            message = f"{path}: a compressed Parquet file; unpack it, as Parquet is compressed by itself"
            raise ValueError(message)
    if lower.endswith(_PARQUET):
        with _parquet_errors(path):
            groups = _parquet(path).metadata
        return [
            Part(path, "parquet", number, number + 1, field, groups.row_group(number).total_byte_size, stamp)
            for number in range(groups.num_row_groups)
        ]
    if not lines and not lower.endswith(_JSON_LINES):
        return [Part(path, "text", 0, size_bytes, field, size_bytes, stamp)]
    kind = "json" if lower.endswith(_JSON_LINES) else "lines"
    if compression:
        return [Part(path, kind, 0, size_bytes, field, size_bytes, stamp)]
    bounds = [*range(0, size_bytes, PART_BYTES), size_bytes]
    return [Part(path, kind, start, end, field, end - start, stamp) for start, end in pairwise(bounds)]


def documents(part: Part) -> Iterator[str]:
    """Yields the documents of a part.

    Raises:
        FormatError: A line is not a JSON object with the field, a row lacks it, or text is not UTF-8.
        OSError: The file cannot be read.
    """
    if part.kind == "parquet":
        yield from _rows(part)
        return
    is_compressed = _compressed.suffix_of(part.path) is not None
    with _compressed.opened(part.path) if is_compressed else open(part.path, "rb") as file:
        if part.kind == "text":
            yield _text(part, 0, file.read())
            return
        if part.start:
            # A line that begins before this part belongs to the previous part.
            file.seek(part.start - 1)
            file.readline()
        offset = file.tell() if part.start else 0
        while (is_compressed or offset < part.end) and (line := file.readline()):
            if stripped := line.strip():
                yield _field(part, offset, line) if part.kind == "json" else _text(part, offset, stripped)
            offset += len(line)


def _text(part: Part, offset: int, data: bytes) -> str:
    try:
        return data.decode()
    except UnicodeDecodeError as error:
        message = f"{part.path}: byte {offset + error.start} is not UTF-8 ({error.reason})"
        raise FormatError(message) from error


def _field(part: Part, offset: int, line: bytes) -> str:
    place = f"the line at byte {offset}"
    text = _text(part, offset, line)
    try:
        found = json.loads(text)
    except RecursionError as error:
        message = f"{part.path}: {place} is JSON that is nested too deeply"
        raise FormatError(message) from error
    except ValueError as error:
        # Also raised for a number with more digits than Python accepts.
        message = f"{part.path}: {place} is not JSON: {error}"
        raise FormatError(message) from error
    return _string(part, place, found.get(part.field) if isinstance(found, dict) else None)


def _string(part: Part, place: str, value: object) -> str:
    if not isinstance(value, str):
        message = (
            f"{part.path}: {place} has no text in the field {part.field!r}; use --field to name another one"
        )
        raise FormatError(message)
    try:
        value.encode()
    except UnicodeEncodeError as error:
        message = (
            f"{part.path}: {place} has half of a surrogate pair, \\u{ord(value[error.start]):04x}, "
            f"as character {error.start} of the field {part.field!r}; expected Unicode text"
        )
        raise FormatError(message) from error
    return value


def _parquet(path: str) -> Any:  # noqa: ANN401 - pyarrow has no types
    try:
        from pyarrow import parquet
    except ImportError as error:
        message = f"{path}: Parquet files are read with pyarrow: pip install pyarrow"
        raise ImportError(message) from error
    return parquet.ParquetFile(path)


@contextmanager
def _parquet_errors(path: str) -> Iterator[None]:
    """Makes pyarrow's errors name the file."""
    try:
        yield
    except FormatError:
        raise
    except (OSError, ValueError) as error:
        # Errors of the system have a number. A damaged page is an OSError without a number.
        if isinstance(error, OSError) and error.errno is not None:
            raise
        message = f"{path}: not a Parquet file, or a damaged one: {' '.join(str(error).split())}"
        raise FormatError(message) from error


def _rows(part: Part) -> Iterator[str]:
    number = 0
    with _parquet_errors(part.path):
        file = _parquet(part.path)
        if part.field not in file.schema_arrow.names:
            message = f"{part.path}: no column {part.field!r}; found {', '.join(file.schema_arrow.names)}"
            raise FormatError(message)
        for batch in file.iter_batches(_ROWS, row_groups=[part.start], columns=[part.field]):
            for value in batch.column(0).to_pylist():
                yield _string(part, f"row {number} of row group {part.start}", value)
                number += 1

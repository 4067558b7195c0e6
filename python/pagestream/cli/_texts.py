"""Documents of text files, JSON lines and Parquet files, in parts that processes take one by one."""

from __future__ import annotations

import json
import os
from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING, Any

from pagestream.errors import FormatError

if TYPE_CHECKING:
    from collections.abc import Iterator

# Files of lines are cut into parts of about so many bytes.
PART_BYTES = 32 << 20
_JSON_LINES = (".jsonl", ".ndjson", ".json")
_PARQUET = ".parquet"


@dataclass(frozen=True)
class Part:
    """What one process reads in one go.

    Attributes:
        path: The file.
        kind: ``"text"``: the file is a document; ``"lines"``: each line is; ``"json"``: a field of each line
            is; ``"parquet"``: a field of each row is.
        start: Where the part begins: a byte, or the number of a row group.
        end: Where the next part begins. A line belongs to the part in which it begins.
        field: The name of the field.
        nbytes: For progress.
    """

    path: str
    kind: str
    start: int
    end: int
    field: str
    nbytes: int


def parts_of(path: str, field: str, *, lines: bool) -> list[Part]:
    """Returns the parts of a file, by its suffix. Files that are neither JSON lines nor Parquet are text.

    Raises:
        OSError: There is no such file.
        ImportError: It is a Parquet file, and pyarrow is not installed.
    """
    size_bytes = os.stat(path).st_size
    lower = path.lower()
    if lower.endswith(_PARQUET):
        groups = _parquet(path).metadata
        return [
            Part(path, "parquet", number, number + 1, field, groups.row_group(number).total_byte_size)
            for number in range(groups.num_row_groups)
        ]
    if not lines and not lower.endswith(_JSON_LINES):
        return [Part(path, "text", 0, size_bytes, field, size_bytes)]
    kind = "json" if lower.endswith(_JSON_LINES) else "lines"
    bounds = [*range(0, size_bytes, PART_BYTES), size_bytes]
    return [Part(path, kind, start, end, field, end - start) for start, end in pairwise(bounds)]


def documents(part: Part) -> Iterator[str]:
    """Yields the documents of a part.

    Raises:
        FormatError: A line is no JSON object with the field, a row lacks it, or text is not UTF-8.
        OSError: The file cannot be read.
    """
    if part.kind == "parquet":
        yield from _rows(part)
        return
    with open(part.path, "rb") as file:
        if part.kind == "text":
            yield _text(part, 0, file.read())
            return
        if part.start:
            # The line that begins before the part belongs to the one before.
            file.seek(part.start - 1)
            file.readline()
        while (offset := file.tell()) < part.end and (line := file.readline()):
            if stripped := line.strip():
                yield _field(part, offset, line) if part.kind == "json" else _text(part, offset, stripped)


def _text(part: Part, offset: int, data: bytes) -> str:
    try:
        return data.decode()
    except UnicodeDecodeError as error:
        message = f"{part.path}: byte {offset + error.start} is not UTF-8 ({error.reason})"
        raise FormatError(message) from error


def _field(part: Part, offset: int, line: bytes) -> str:
    try:
        found = json.loads(_text(part, offset, line))
    except json.JSONDecodeError as error:
        message = f"{part.path}: the line at byte {offset} is no JSON: {error}"
        raise FormatError(message) from error
    return _string(
        part, f"the line at byte {offset}", found.get(part.field) if isinstance(found, dict) else None
    )


def _string(part: Part, place: str, value: object) -> str:
    if isinstance(value, str):
        return value
    message = f"{part.path}: {place} has no text in the field {part.field!r}; --field names another one"
    raise FormatError(message)


def _parquet(path: str) -> Any:  # noqa: ANN401 - pyarrow has no types
    try:
        from pyarrow import parquet
    except ImportError as error:
        message = f"{path}: Parquet files are read with pyarrow: pip install pyarrow"
        raise ImportError(message) from error
    return parquet.ParquetFile(path)


def _rows(part: Part) -> Iterator[str]:
    file = _parquet(part.path)
    if part.field not in file.schema_arrow.names:
        message = f"{part.path}: no column {part.field!r}; found {', '.join(file.schema_arrow.names)}"
        raise FormatError(message)
    column = file.read_row_group(part.start, columns=[part.field]).column(0)
    for number, value in enumerate(column.to_pylist()):
        yield _string(part, f"row {number} of row group {part.start}", value)

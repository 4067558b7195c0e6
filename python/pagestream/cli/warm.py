"""``pagestream warm``: files come into the page cache."""

from __future__ import annotations

import os
import threading
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Annotated

import typer

from pagestream import _native
from pagestream._common.amounts import size
from pagestream.cli import _output
from pagestream.cli._arguments import AsJson, Paths
from pagestream.cli._progress import bar_of_bytes
from pagestream.cli._target import files_of
from pagestream.files.mapped_file import MappedFile

if TYPE_CHECKING:
    from collections.abc import Iterator

_THREADS, _CHUNK_BYTES = 16, 8 << 20
# Of the memory that is available: the rest is for the program that is to use the files.
_MEMORY_SHARE = 2


def warm(
    paths: Paths,
    limit: Annotated[
        str | None,
        typer.Option(help="Read at most so many bytes, e.g. 20GiB. Never more than half of the memory."),
    ] = None,
    threads: Annotated[int, typer.Option(min=1, max=_native.MAX_THREADS, help="Reads at a time.")] = _THREADS,
    as_json: AsJson = False,
) -> None:
    """Read files into the page cache, many requests at a time. Ctrl-C stops; what was read stays.

    Example: pagestream warm /mnt/models/llama --limit 20GiB
    """
    files = list(dict.fromkeys(file for path in paths for file in files_of(path)))
    total_bytes = sum(map(os.path.getsize, files))
    room_bytes = _native.available_memory_bytes() // _MEMORY_SHARE
    most_bytes = min(total_bytes, room_bytes, total_bytes if limit is None else _parsed(limit))
    done_bytes = _read(_chunks(files, most_bytes), most_bytes, threads)
    is_full = done_bytes < min(total_bytes, total_bytes if limit is None else _parsed(limit))
    if as_json:
        _output.print_json({"nbytes": total_bytes, "warmed_bytes": done_bytes, "memory_is_full": is_full})
        return
    console = _output.console()
    console.print(f"{size(done_bytes)} of {size(total_bytes)} were read or found in the page cache")
    if is_full:
        console.print(f"  the page cache gets half of the available memory, {size(room_bytes)}")


def _chunks(files: list[str], most_bytes: int) -> Iterator[tuple[str, int, int]]:
    """Yields ranges of files, in order, until they have so many bytes."""
    for path in files:
        size_bytes = os.path.getsize(path)
        for start in range(0, size_bytes, _CHUNK_BYTES):
            length = min(_CHUNK_BYTES, size_bytes - start, most_bytes)
            if length <= 0:
                return
            most_bytes -= length
            yield path, start, length


def _read(chunks: Iterator[tuple[str, int, int]], total_bytes: int, threads: int) -> int:
    """Reads ranges of files, and returns how many bytes that are."""
    stops = threading.Event()
    done_bytes = 0
    with bar_of_bytes() as progress, ThreadPoolExecutor(threads) as pool:
        task = progress.add_task("warm", total=total_bytes)

        def read(chunk: tuple[str, int, int]) -> int:
            path, start, length = chunk
            if stops.is_set():
                return 0
            with MappedFile(path) as file:
                file.warm(start, length)
            progress.update(task, advance=length)
            return length

        try:
            for length in pool.map(read, chunks):
                done_bytes += length
        finally:
            stops.set()
    return done_bytes


def _parsed(text: str) -> int:
    """Returns a number of bytes: ``"20GiB"``, ``"500 MB"``, ``"4096"``.

    Raises:
        ValueError: It is none.
    """
    units = {"": 1, "B": 1}
    for power, letter in enumerate("KMGT", 1):
        units |= {letter: 1024**power, f"{letter}iB": 1024**power, f"{letter}B": 1000**power}
    number = text.rstrip("BKMGTibkmgt ")
    unit = text[len(number) :].strip()
    known = {name.upper(): factor for name, factor in units.items()}
    try:
        found = int(float(number) * known[unit.upper()])
    except (ValueError, KeyError, OverflowError):
        found = 0
    if found < 1:
        message = f"--limit is {text!r}; it must be a number of bytes, such as 20GiB"
        raise ValueError(message)
    return found

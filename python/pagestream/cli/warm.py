"""``pagestream warm``: reads files into the page cache."""

from __future__ import annotations

import math
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Annotated

import typer

from pagestream import _native
from pagestream._common.amounts import size
from pagestream.cli import _codes, _console, _output
from pagestream.cli._arguments import AsJson, Paths
from pagestream.cli._progress import bar_of_bytes
from pagestream.cli._target import files_of
from pagestream.files.mapped_file import MappedFile

if TYPE_CHECKING:
    from collections.abc import Iterator

_THREADS, _CHUNK_BYTES = 16, 8 << 20
# Limit: half of the available memory. The program that uses the files needs the rest.
_MEMORY_SHARE = 2
# A mount keeps no pages if less than this share of the bytes is in the cache after the read.
_KEPT_SHARE = 0.5


def warm(
    paths: Paths,
    limit: Annotated[
        str | None,
        typer.Option(help="Bytes to read at most, e.g. 20GiB. Never more than half of the free memory."),
    ] = None,
    threads: Annotated[int, typer.Option(min=1, max=_native.MAX_THREADS, help="Reads at a time.")] = _THREADS,
    as_json: AsJson = False,
) -> None:
    """Read files into the page cache, many requests at a time. Ctrl-C stops, and read pages stay.

    Example: pagestream warm /mnt/models/llama --limit 20GiB
    """
    files, problems = files_of(paths)
    sizes = {path: _size(path) for path in files}
    total_bytes = sum(sizes.values())
    wanted_bytes = total_bytes if limit is None else min(total_bytes, _parsed(limit))
    room_bytes = _native.available_memory_bytes() // _MEMORY_SHARE
    most_bytes = min(wanted_bytes, room_bytes)
    begun = time.monotonic()
    done_bytes, is_interrupted = _read(_chunks(sizes, most_bytes), most_bytes, threads)
    seconds = time.monotonic() - begun
    is_full = done_bytes < wanted_bytes and not is_interrupted
    cached_bytes = _cached_bytes(sizes)
    if as_json:
        _output.print_json(
            {
                "nbytes": total_bytes,
                "warmed_bytes": done_bytes,
                "cached_bytes": cached_bytes,
                "seconds": seconds,
                "memory_is_full": is_full,
                "interrupted": is_interrupted,
            }
        )
    else:
        console = _console.console()
        _console.print_text(
            console,
            f"{size(done_bytes)} of {size(total_bytes)} were read or found in the page cache, "
            f"in {seconds:.1f} s ({size(int(done_bytes / seconds))} a second)",
            indent=2,
        )
        actions: list[str] = []
        if is_full:
            actions.append(f"the page cache gets half of the available memory, {size(room_bytes)}")
        if cached_bytes is not None and cached_bytes < done_bytes * _KEPT_SHARE:
            actions.append(
                f"only {size(cached_bytes)} are in the page cache now: the mount keeps no pages, or memory "
                f"is short; pagestream check {paths[0]} tells"
            )
        for line in actions:
            _console.print_text(console, line, head="  ", style=_console.ACTION)
    if is_interrupted:
        raise typer.Exit(_codes.INTERRUPTED)
    _output.end_if_any(problems)


def _size(path: str) -> int:
    """Returns the size of a file. Rejects files without a readable size, for example in /proc."""
    with MappedFile(path) as file:
        return file.size


def _cached_bytes(sizes: dict[str, int]) -> int | None:
    """Returns the number of bytes of files in the page cache, or None if the kernel does not show it."""
    found = 0.0
    for path, size_bytes in sizes.items():
        with MappedFile(path) as file:
            found += file.residency().fraction * size_bytes
    return None if math.isnan(found) else round(found)


def _chunks(sizes: dict[str, int], most_bytes: int) -> Iterator[tuple[str, int, int]]:
    """Yields ranges of the files, in order, until their lengths add up to `most_bytes`."""
    for path, size_bytes in sizes.items():
        for start in range(0, size_bytes, _CHUNK_BYTES):
            length = min(_CHUNK_BYTES, size_bytes - start, most_bytes)
            if length <= 0:
                return
            most_bytes -= length
            yield path, start, length


def _read(chunks: Iterator[tuple[str, int, int]], total_bytes: int, threads: int) -> tuple[int, bool]:
    """Reads ranges of files. Returns the number of bytes read, and whether Ctrl-C ended it."""
    stops = threading.Event()
    done_bytes, is_interrupted = 0, False
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
        except KeyboardInterrupt:
            is_interrupted = True
        finally:
            stops.set()
    return done_bytes, is_interrupted


def _parsed(text: str) -> int:
    """Parses a number of bytes: ``"20GiB"``, ``"500 MB"``, ``"4096"``.

    Raises:
        ValueError: The text is not a number of bytes.
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

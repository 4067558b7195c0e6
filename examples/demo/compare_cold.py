"""Random batches from storage: a file larger than the caches of a disk, dropped from the page cache.

The file repeats the training tokens, and is removed at the end. Before each pass, the program evicts it from
the page cache, which needs no privilege, and raises an error if pages stay cached. The program cannot empty
caches below the page cache, for example in the disk or in the host of a virtual machine. Each pass therefore
reads other windows.
"""

from __future__ import annotations

import contextlib
import mmap
import shutil
import time
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from files import DemoError, written_whole
from measure import Measured, Row
from pagestream import MappedFile
from pagestream.torch import TokenLoader
from token_batches import Batch, Shape, check, nanogpt_batch, windows_batch

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

SHAPE = (64, 1024)
BATCHES = 16
RESIDENT_LIMIT = 0.01

OURS = "TokenLoader"
THEIRS = ("nanoGPT get_batch", "np.memmap, MADV_RANDOM")


def compare(train_path: Path, *, size_bytes: int, rounds: int) -> list[Row]:
    """Reads the contenders' batches from a cold file, in turn.

    Args:
        train_path: A token file of `uint16`.
        size_bytes: The minimum size of the cold file, which is written beside it.
        rounds: The number of turns for each contender. Every other round reverses the order.

    Raises:
        DemoError: The file stays in the page cache, the disk has no room for it, or a batch is wrong.
    """
    tokens = np.fromfile(train_path, np.uint16)
    # One period, and enough of the next period for a window that begins at the end of the first.
    content = np.resize(tokens, len(tokens) + SHAPE[1] + 1).tobytes()
    seconds: dict[str, list[float]] = {name: [] for name in WAYS}
    with cold_file(train_path.with_name("cold.bin"), tokens, size_bytes) as path:
        names = list(WAYS)
        for number in range(rounds):
            for place, name in enumerate(names):
                evict(path)
                seconds[name].append(_timed_pass(path, name, content, seed=number * len(names) + place))
            names.reverse()
        file_bytes = path.stat().st_size
    return [
        Row(
            group=f"cold batches: the same from a file of {file_bytes / 2**20:,.0f} MiB that is not in it",
            case=f"{SHAPE[0]} x {SHAPE[1]} tokens",
            ours=OURS,
            theirs=theirs,
            unit="seconds",
            our_value=Measured.of(seconds[OURS]),
            their_value=Measured.of(seconds[theirs]),
            work_tokens=BATCHES * SHAPE[0] * SHAPE[1],
        )
        for theirs in THEIRS
    ]


@contextlib.contextmanager
def cold_file(path: Path, tokens: np.ndarray[Any, Any], size_bytes: int) -> Iterator[Path]:
    """Yields a file that repeats the tokens up to at least this size. Removes it afterwards.

    Raises:
        DemoError: The disk has no room for it.
    """
    free_bytes = shutil.disk_usage(path.parent).free
    if free_bytes < size_bytes + 2**28:
        message = (
            f"{path} takes {size_bytes / 2**20:,.0f} MiB, {free_bytes / 2**20:,.0f} are free; see --cold-mib"
        )
        raise DemoError(message)
    period = tokens.tobytes()
    try:
        with written_whole(path) as partial, partial.open("wb") as file:
            for _ in range(-(-size_bytes // len(period))):
                file.write(period)
        yield path
    finally:
        path.unlink(missing_ok=True)


def evict(path: Path) -> None:
    """Drops a file from the page cache.

    Raises:
        DemoError: The file stays cached, for example on a file system in memory.
    """
    with MappedFile(path) as file:
        file.evict()
        resident = file.residency().fraction
    if resident > RESIDENT_LIMIT:
        message = (
            f"{resident:.0%} of {path} stay in the page cache, so nothing can be said about cold reads; "
            "is --output on a disk?"
        )
        raise DemoError(message)


def _timed_pass(path: Path, name: str, content: bytes, *, seed: int) -> float:
    """Returns the seconds from opening the file to the last batch. Checks the batches afterwards."""
    begin = time.perf_counter()
    batches, close = WAYS[name](path, SHAPE, seed)
    seconds = time.perf_counter() - begin
    close()
    check(content, SHAPE, name, batches)
    return seconds


def _loaded(path: Path, shape: Shape, seed: int) -> tuple[list[Batch], Callable[[], None]]:
    windows, length = shape
    loader = TokenLoader(
        path, sequence_length=length, batch_size=windows, order="random", seed=seed, epochs=None
    )
    return [next(loader) for _ in range(BATCHES)], loader.close


def _mapped_anew(path: Path, shape: Shape, seed: int) -> tuple[list[Batch], Callable[[], None]]:
    generator = torch.Generator().manual_seed(seed)
    return [nanogpt_batch(path, shape, generator) for _ in range(BATCHES)], _nothing


def _mapped_random(path: Path, shape: Shape, seed: int) -> tuple[list[Batch], Callable[[], None]]:
    generator = torch.Generator().manual_seed(seed)
    data = np.memmap(path, dtype=np.uint16, mode="r")
    mapping: Any = data.base
    mapping.madvise(mmap.MADV_RANDOM)
    return [windows_batch(data, shape, generator) for _ in range(BATCHES)], _nothing


def _nothing() -> None:
    """Closes nothing: the memmap is freed with its last user."""


WAYS = {OURS: _loaded, THEIRS[0]: _mapped_anew, THEIRS[1]: _mapped_random}

"""Random batches from the page cache: pagestream compared with `np.memmap`, on the same file."""

from __future__ import annotations

import collections
from typing import TYPE_CHECKING

import numpy as np
import torch

from measure import Row, alternate
from pagestream.torch import TokenLoader
from token_batches import Batch, Shape, check, nanogpt_batch, strided_batch

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping
    from pathlib import Path

SHAPES = ((12, 256), (64, 1024))
"""A small model's, and a usual one."""

OURS = "TokenLoader"
THEIRS = ("nanoGPT get_batch", "np.memmap, strided view")
CHECKED_BATCHES = 3


def rivals(path: Path, shape: Shape) -> dict[str, Callable[[], Batch]]:
    """Returns a function for each of `THEIRS` that makes one batch."""
    generator = torch.Generator().manual_seed(0)
    data = np.memmap(path, dtype=np.uint16, mode="r")
    return {
        THEIRS[0]: lambda: nanogpt_batch(path, shape, generator),
        THEIRS[1]: lambda: strided_batch(data, shape, generator),
    }


def compare(path: Path, *, rounds: int, round_seconds: float) -> list[Row]:
    """Checks and times all contenders for all shapes. The file is in the page cache.

    Args:
        path: A token file of `uint16`.
        rounds: See `measure.alternate`.
        round_seconds: See `measure.alternate`.
    """
    rows = []
    content = path.read_bytes()
    for shape in SHAPES:
        windows, sequence_tokens = shape
        with TokenLoader(
            path, sequence_length=sequence_tokens, batch_size=windows, order="random", epochs=None
        ) as loader:
            # Each contender frees a batch once it has the next one, as a training loop does.
            ways: Mapping[str, Callable[[], Batch]] = {OURS: loader.__next__, **rivals(path, shape)}
            for name, way in ways.items():
                check(content, shape, name, [way() for _ in range(CHECKED_BATCHES)])
            count = max(1, 2**18 // (windows * sequence_tokens))
            calls = {name: _consumer(way, count) for name, way in ways.items()}
            seconds = alternate(calls, rounds=rounds, round_seconds=round_seconds)
        rows += [
            Row(
                group="batches: random windows as int64 x and y, file in the page cache",
                case=f"{windows} x {sequence_tokens} tokens",
                ours=OURS,
                theirs=theirs,
                unit="seconds",
                our_value=seconds[OURS],
                their_value=seconds[theirs],
                work_tokens=count * windows * sequence_tokens,
            )
            for theirs in THEIRS
        ]
    return rows


def _consumer(way: Callable[[], Batch], count: int) -> Callable[[], object]:
    """Returns a function that makes `count` batches, and frees each once it has the next one."""

    def batches() -> Iterator[Batch]:
        return (way() for _ in range(count))

    return lambda: collections.deque(batches(), maxlen=1)

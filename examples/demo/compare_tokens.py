"""Random batches of tokens: pagestream against `np.memmap`, on the same file and the same windows."""

from __future__ import annotations

import collections
import dataclasses
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch.utils.data import DataLoader, RandomSampler, default_collate

import pagestream.torch
from files import DemoError
from measure import Row, alternate

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from torch import Tensor

Batch = tuple["Tensor", "Tensor"]

SHAPES = ((12, 256), (64, 1024))
"""Windows in a batch and tokens in a window: a small model's, and a usual one."""


@dataclasses.dataclass(frozen=True)
class Contender:
    """One way to make batches.

    Attributes:
        batches: ``batches(seed, count)`` yields that many batches of random windows.
        starts: ``starts(seed, count)`` says where their windows begin, so that they can be checked.
    """

    batches: Callable[[int, int], Iterator[Batch]]
    starts: Callable[[int, int], list[int]]


def nanogpt_batch(path: Path, shape: tuple[int, int], generator: torch.Generator | None = None) -> Batch:
    """A batch as nanoGPT's `get_batch` makes it, line by line: a new map, a copy for each window, a stack.

    https://github.com/karpathy/nanoGPT/blob/master/train.py
    """
    batch_size, block_size = shape
    data = np.memmap(path, dtype=np.uint16, mode="r")
    ix = torch.randint(len(data) - block_size, (batch_size,), generator=generator)
    x = torch.stack([torch.from_numpy((data[i : i + block_size]).astype(np.int64)) for i in ix])
    y = torch.stack([torch.from_numpy((data[i + 1 : i + 1 + block_size]).astype(np.int64)) for i in ix])
    return x, y


def strided_batch(data: np.memmap, shape: tuple[int, int], generator: torch.Generator) -> Batch:
    """A batch by NumPy at its best: one map kept open, all windows taken by one index of a strided view."""
    windows, sequence_tokens = shape
    starts = torch.randint(len(data) - sequence_tokens, (windows,), generator=generator).numpy()
    every_window = np.lib.stride_tricks.sliding_window_view(data, sequence_tokens)
    x = torch.from_numpy(every_window[starts].astype(np.int64))
    y = torch.from_numpy(every_window[starts + 1].astype(np.int64))
    return x, y


def pagestream_batch(
    dataset: pagestream.torch.TokenDataset, windows: int, generator: torch.Generator | None = None
) -> Batch:
    """A batch by hand from `TokenDataset`, put together as `DataLoader` does it."""
    starts = torch.randint(len(dataset), (windows,), generator=generator).tolist()
    x, y = default_collate(dataset.__getitems__(starts))
    return x, y


def contenders(path: Path, shape: tuple[int, int]) -> dict[str, Contender]:
    """All ways to make batches of one shape, by the name that the table gives them."""
    windows, sequence_tokens = shape
    dataset = pagestream.torch.TokenDataset(pagestream.open_tokens(path), sequence_tokens)
    data = np.memmap(path, dtype=np.uint16, mode="r")

    def drawn(seed: int, count: int) -> list[int]:
        generator = torch.Generator().manual_seed(seed)
        draws = [torch.randint(len(dataset), (windows,), generator=generator) for _ in range(count)]
        return [int(start) for start in torch.cat(draws)]

    def repeated(make: Callable[[torch.Generator], Batch]) -> Contender:
        def batches(seed: int, count: int) -> Iterator[Batch]:
            generator = torch.Generator().manual_seed(seed)
            return (make(generator) for _ in range(count))

        return Contender(batches, drawn)

    def sampler(seed: int, count: int) -> RandomSampler:
        generator = torch.Generator().manual_seed(seed)
        return RandomSampler(dataset, replacement=True, num_samples=count * windows, generator=generator)

    def loaded(seed: int, count: int) -> Iterator[Batch]:
        return iter(DataLoader(dataset, windows, sampler=sampler(seed, count), num_workers=0))

    return {
        "TokenDataset": repeated(lambda generator: pagestream_batch(dataset, windows, generator)),
        "TokenDataset in DataLoader": Contender(loaded, lambda seed, count: list(sampler(seed, count))),
        "nanoGPT get_batch": repeated(lambda generator: nanogpt_batch(path, shape, generator)),
        "np.memmap, strided view": repeated(lambda generator: strided_batch(data, shape, generator)),
    }


def verify(path: Path, shape: tuple[int, int], name: str, contender: Contender) -> None:
    """Compares some batches with the file's own content, read plainly.

    Raises:
        DemoError: A batch has wrong tokens, or another type or shape than nanoGPT's.
    """
    windows, sequence_tokens = shape
    data = torch.from_numpy(np.fromfile(path, dtype=np.uint16).astype(np.int64))
    seed, count = 1, 3
    starts = torch.tensor(contender.starts(seed, count)).view(count, windows, 1)
    spans = starts + torch.arange(sequence_tokens)
    for span, (x, y) in zip(spans, contender.batches(seed, count), strict=True):
        if not (torch.equal(x, data[span]) and torch.equal(y, data[span + 1])):
            message = f"{name} gave a batch with wrong tokens"
            raise DemoError(message)


def compare(path: Path, *, rounds: int, round_seconds: float) -> list[Row]:
    """Checks and times all contenders for all shapes; the file is in the page cache.

    Args:
        path: A token file of `uint16`.
        rounds: See `measure.alternate`.
        round_seconds: See `measure.alternate`.
    """
    rows = []
    for shape in SHAPES:
        ways = contenders(path, shape)
        for name, way in ways.items():
            verify(path, shape, name, way)
        count = max(1, 2**18 // (shape[0] * shape[1]))
        calls = {name: _consumer(way, count) for name, way in ways.items()}
        seconds = alternate(calls, rounds=rounds, round_seconds=round_seconds)
        ours = ("TokenDataset", "nanoGPT get_batch"), ("TokenDataset in DataLoader", "nanoGPT get_batch")
        for our_name, their_name in (*ours, ("TokenDataset", "np.memmap, strided view")):
            rows.append(
                Row(
                    group="batches: random windows as int64 x and y, file in the page cache",
                    case=f"{shape[0]} x {shape[1]} tokens",
                    ours=our_name,
                    theirs=their_name,
                    unit="seconds",
                    our_value=seconds[our_name],
                    their_value=seconds[their_name],
                    work_tokens=count * shape[0] * shape[1],
                )
            )
    return rows


def _consumer(way: Contender, count: int) -> Callable[[], object]:
    """A call that makes `count` batches and lets go of each when the next is there."""
    return lambda: collections.deque(way.batches(0, count), maxlen=1)

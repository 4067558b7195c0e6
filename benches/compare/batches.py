"""Batches of token windows, page cache warm, x and y contiguous int64."""

import ctypes
import threading
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import numpy as np
import torch
from harness import Row, compare
from torch.utils.data import DataLoader, Dataset, RandomSampler

import pagestream.torch
from pagestream import TokenLoader

TITLE = "token batches, page cache warm"
TOKENS = 100_000_000
SHAPES = ((64, 1024), (32, 4096))
BATCHES_A_CALL = 64
ROUNDS = 9
LIMIT = "2 threads that only write as many bytes"
# The goal for each sequence length: the ratio to nanoGPT's get_batch, and the ratio to the best DataLoader.
GOALS = {1024: (20, 8), 4096: (10, 5)}


class MemmapWindows(Dataset):
    """The usual map-style dataset: x and y of a window from an np.memmap, with default collation."""

    def __init__(self, path: Path, length: int, mode: str = "r") -> None:
        self.tokens = np.memmap(path, "u2", mode)
        self.length = length

    def __len__(self) -> int:
        return len(self.tokens) - self.length

    def __getitem__(self, start: int) -> tuple[torch.Tensor, torch.Tensor]:
        window = self.tokens[start : start + self.length + 1].astype("i8")
        return torch.from_numpy(window[:-1]), torch.from_numpy(window[1:])


class MemmapBatches(MemmapWindows):
    """The same dataset, but with a whole batch in one call, as torch's fetcher allows."""

    def __init__(self, path: Path, length: int) -> None:
        super().__init__(path, length)
        self.windows = np.lib.stride_tricks.sliding_window_view(self.tokens, length + 1)

    def __getitems__(self, starts: list[int]) -> tuple[torch.Tensor, torch.Tensor]:
        both = self.windows[starts]
        return torch.from_numpy(both[:, :-1].astype("i8")), torch.from_numpy(both[:, 1:].astype("i8"))


class Endless:
    """Repeats a DataLoader endlessly for `next`. Its workers persist."""

    def __init__(self, loader: DataLoader) -> None:
        self.loader = loader
        self.iterator: Iterator[object] = iter(loader)

    def __call__(self) -> object:
        try:
            return next(self.iterator)
        except StopIteration:
            self.iterator = iter(self.loader)
            return next(self.iterator)


def data_loaders(path: Path, batch_size: int, length: int) -> dict[str, Endless]:
    """DataLoader in the usual configurations, with random windows with replacement."""
    arms = {}
    for dataset, collate, word in (
        (MemmapWindows(path, length), None, "a window a call"),
        (MemmapBatches(path, length), lambda batch: batch, "__getitems__"),
    ):
        for workers in (0, 2):
            sampler = RandomSampler(dataset, replacement=True, num_samples=1 << 30)
            loader = DataLoader(
                dataset, batch_size, sampler=sampler, num_workers=workers, collate_fn=collate, drop_last=True
            )
            arms[f"DataLoader, {word}, {workers} workers"] = Endless(loader)
    return arms


class WriteOnly:
    """Two threads that only write the bytes of batches, half a batch each. ctypes releases the GIL.

    They alternate between the same number of buffers as a loader. The caches then help both equally.
    """

    def __init__(self, batch_bytes: int, buffers: int) -> None:
        self.half = batch_bytes // 2
        self.buffers = [np.ones(batch_bytes, "u1") for _ in range(buffers)]
        self.go = [threading.Semaphore(0) for _ in range(2)]
        self.done = threading.Semaphore(0)
        self.stopped = False
        self.threads = [threading.Thread(target=self.write, args=(half,)) for half in (0, 1)]
        for thread in self.threads:
            thread.start()

    def write(self, half: int) -> None:
        addresses = [buffer.ctypes.data + half * self.half for buffer in self.buffers]
        while True:
            self.go[half].acquire()
            if self.stopped:
                return
            for number in range(BATCHES_A_CALL):
                ctypes.memset(addresses[number % len(addresses)], number, self.half)
            self.done.release()

    def __call__(self) -> None:
        for half in self.go:
            half.release()
        for _ in self.go:
            self.done.acquire()

    def close(self) -> None:
        self.stopped = True
        for half in self.go:
            half.release()
        for thread in self.threads:
            thread.join()


def measure(folder: Path) -> list[Row]:
    path = folder / "tokens"
    np.random.default_rng(0).integers(0, 50_000, TOKENS, "u2").tofile(path)
    return [row for shape in SHAPES for row in measure_shape(path, *shape)]


def measure_shape(path: Path, batch_size: int, length: int) -> list[Row]:
    kept = np.memmap(path, "u2", "r")
    windows = np.lib.stride_tricks.sliding_window_view(kept, length + 1)
    generator = np.random.default_rng(1)
    verify(path, length, batch_size, kept)

    def nanogpt() -> tuple[torch.Tensor, torch.Tensor]:
        data = np.memmap(path, dtype=np.uint16, mode="r")
        starts = torch.randint(len(data) - length, (batch_size,)).tolist()
        x = torch.stack([torch.from_numpy(data[i : i + length].astype(np.int64)) for i in starts])
        y = torch.stack([torch.from_numpy(data[i + 1 : i + 1 + length].astype(np.int64)) for i in starts])
        return x, y

    def strided() -> tuple[np.ndarray, np.ndarray]:
        both = windows[generator.integers(0, len(windows), batch_size)]
        return both[:, :-1].astype("i8"), both[:, 1:].astype("i8")

    shape = {"sequence_length": length, "batch_size": batch_size, "epochs": None}
    own = {
        "TokenLoader": TokenLoader(path, **shape),
        "pagestream.torch.TokenLoader": pagestream.torch.TokenLoader(path, **shape),
        "TokenLoader, int32": TokenLoader(path, dtype="int32", **shape),
        "TokenLoader, raw uint16": TokenLoader(path, dtype="raw", **shape),
    }
    arms = data_loaders(path, batch_size, length)
    for arm in arms.values():
        verify_windows(*arm(), kept)
    verify_windows(*nanogpt(), kept)
    verify_windows(*strided(), kept)
    for loader in own.values():
        next(loader)
    buffers = int(own["TokenLoader"].metrics().buffers_allocated)
    limit = WriteOnly(2 * batch_size * length * 8, max(buffers, 2))
    one_by_one = {name: partial(next, loader) for name, loader in own.items()}
    one_by_one |= {"nanoGPT get_batch": nanogpt, "strided NumPy gather": strided, **arms}
    contestants = {name: partial(many, call) for name, call in one_by_one.items()}
    contestants[LIMIT] = limit
    try:
        whole = compare(
            f"{batch_size} x {length}",
            contestants,
            rounds=ROUNDS,
            seconds_per_sample=0.1,
            times_a_call=BATCHES_A_CALL,
        )
    finally:
        limit.close()
        for loader in own.values():
            loader.close()
    return split(whole, list(own), list(arms), GOALS[length])


def many(call: Callable[[], object]) -> None:
    for _ in range(BATCHES_A_CALL):
        call()


def split(whole: Row, own: list[str], arms: list[str], goals: tuple[float, float]) -> list[Row]:
    """Returns a row for each of our loaders. Rivals appear only beside a loader with the same batches."""
    best = min(arms, key=whole.median)
    wanted = {"nanoGPT get_batch": goals[0], best: goals[1], "strided NumPy gather": 1.5, LIMIT: 0.6}
    all_rivals = [name for name in whole.figures if name not in own]
    rivals_of = {own[0]: all_rivals, own[1]: list(wanted)}
    rows = []
    for name in own:
        rivals = rivals_of.get(name, [])
        figures = {contestant: whole.figures[contestant] for contestant in [name, *rivals]}
        rows.append(Row(whole.case, name, figures, goals=wanted if rivals else {}, limits=[LIMIT]))
    return rows


def verify(path: Path, length: int, batch_size: int, tokens: np.ndarray) -> None:
    """Checks that the first batches of each type contain the file's tokens, in the order of the window
    numbers."""
    for kind, dtype in (("int64", "i8"), ("int32", "i4"), ("raw", "u2")):
        with TokenLoader(
            path, sequence_length=length, batch_size=batch_size, order="sequential", dtype=kind
        ) as loader:
            for number in range(20):
                x, y = next(loader)
                first = number * batch_size * length
                expected = tokens[first : first + batch_size * length + 1]
                assert x.dtype == y.dtype == dtype
                assert x.flags.c_contiguous
                assert y.flags.c_contiguous
                assert np.array_equal(x.reshape(-1), expected[:-1])
                assert np.array_equal(y.reshape(-1), expected[1:])


def verify_windows(x: np.ndarray | torch.Tensor, y: np.ndarray | torch.Tensor, tokens: np.ndarray) -> None:
    """Checks that a rival's x and y are windows of the file, int64 and contiguous."""
    x, y = np.asarray(x), np.asarray(y)
    assert x.dtype == y.dtype == "i8"
    assert x.flags.c_contiguous
    assert y.flags.c_contiguous
    assert np.array_equal(x[:, 1:], y[:, :-1])
    head = np.flatnonzero((tokens[:-1] == x[0, 0]) & (tokens[1:] == x[0, 1])).tolist()
    assert any(np.array_equal(tokens[start : start + x.shape[1]], x[0]) for start in head)

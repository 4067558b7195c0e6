"""Ways to read random windows of a token file, with pagestream and with other libraries.

A way fills `rows` with the raw tokens of windows. It returns the seconds and the starts of the windows.
LitData and order="blocked" have their own orders. All other ways read the windows of a `TokenLoader` with
order="random" and the same seed. The np.memmap ways only copy tokens; they do not widen them.
"""

import gc
import mmap
import shutil
import time
from collections.abc import Callable
from pathlib import Path

import grain
import litdata
import numpy as np
import torch
from batches import MemmapWindows
from cold import evict
from litdata.streaming import Cache
from torch.utils.data import DataLoader

from pagestream import TokenLoader, _native

BATCH = 64
LITDATA_BYTES = 1 << 30
LITDATA_CHUNK_BYTES = 64_000_000
# (path, seed, rows) -> (seconds, first tokens of the windows)
Way = Callable[[Path, int, np.ndarray], tuple[float, np.ndarray]]


def starts_of(path: Path, seed: int, rows: np.ndarray, order: str = "random", radius: int = 1) -> np.ndarray:
    """Returns the starts of the first windows of a `TokenLoader`. A window has T + 1 tokens."""
    count, length = len(rows), rows.shape[1] - 1
    tokens = path.stat().st_size // 2
    corpus = ((tokens - 1) // length, tokens - length)
    draws = np.array(_native.drawn(corpus, order, radius, seed, count), "u8")
    return draws if order == "random" else draws * length


def own(
    path: Path, seed: int, rows: np.ndarray, order: str = "random", **settings: str
) -> tuple[float, np.ndarray]:
    """Reads with `TokenLoader`. The clock includes its construction. Its threads read past the last
    window."""
    begin = time.perf_counter()
    length = rows.shape[1] - 1
    with TokenLoader(
        path, sequence_length=length, batch_size=BATCH, order=order, seed=seed, epochs=None, **settings
    ) as loader:
        for first in range(0, len(rows), BATCH):
            x, y = next(loader)
            rows[first : first + BATCH, 0] = x[:, 0]
            rows[first : first + BATCH, 1:] = y
        seconds = time.perf_counter() - begin
    return seconds, starts_of(path, seed, rows, order, loader.mixing_radius)


def map_per_batch(path: Path, seed: int, rows: np.ndarray, mode: str = "r") -> tuple[float, np.ndarray]:
    """Makes a new np.memmap for each batch, as nanoGPT does."""
    starts = starts_of(path, seed, rows)
    begin = time.perf_counter()
    for first in range(0, len(rows), BATCH):
        data = np.memmap(path, dtype="u2", mode=mode)
        for row, start in enumerate(starts[first : first + BATCH].tolist(), first):
            rows[row] = data[start : start + rows.shape[1]]
    return time.perf_counter() - begin, starts


def map_random(path: Path, seed: int, rows: np.ndarray, mode: str = "r") -> tuple[float, np.ndarray]:
    """Reads through an np.memmap with MADV_RANDOM."""
    starts = starts_of(path, seed, rows)
    begin = time.perf_counter()
    data = np.memmap(path, dtype="u2", mode=mode)
    data.base.madvise(mmap.MADV_RANDOM)
    for row, start in enumerate(starts.tolist()):
        rows[row] = data[start : start + rows.shape[1]]
    return time.perf_counter() - begin, starts


class MemmapSource:
    """A Grain source as in torchtitan's documentation: slices of an np.memmap."""

    def __init__(self, path: Path, starts: np.ndarray, tokens: int, advice: int) -> None:
        self.data = np.memmap(path, "u2", "r")
        self.data.base.madvise(advice)
        self.starts, self.tokens = starts.tolist(), tokens

    def __len__(self) -> int:
        return len(self.starts)

    def __getitem__(self, index: int) -> np.ndarray:
        start = self.starts[index]
        return np.array(self.data[start : start + self.tokens])


def by_grain(
    path: Path, seed: int, rows: np.ndarray, advice: int = mmap.MADV_NORMAL
) -> tuple[float, np.ndarray]:
    """Reads with Grain, with its default of 16 threads that read up to 500 windows ahead."""
    starts = starts_of(path, seed, rows)
    begin = time.perf_counter()
    dataset = grain.MapDataset.source(MemmapSource(path, starts, rows.shape[1], advice))
    batches = dataset.to_iter_dataset(grain.ReadOptions()).batch(BATCH)
    for number, batch in enumerate(batches):
        rows[number * BATCH : (number + 1) * BATCH] = batch
    return time.perf_counter() - begin, starts


def by_data_loader(path: Path, seed: int, rows: np.ndarray, mode: str = "r") -> tuple[float, np.ndarray]:
    """Reads with DataLoader and 2 workers. The clock starts with the first batch, once the workers run."""
    starts = starts_of(path, seed, rows)
    dataset = MemmapWindows(path, rows.shape[1] - 1, mode)
    loader = DataLoader(dataset, BATCH, sampler=starts.tolist(), num_workers=2)
    begin = 0.0
    for number, (x, y) in enumerate(loader):
        begin = begin or time.perf_counter()
        rows[number * BATCH : (number + 1) * BATCH, 0] = x[:, 0]
        rows[number * BATCH : (number + 1) * BATCH, 1:] = y
    seconds = time.perf_counter() - begin
    return seconds * len(rows) / (len(rows) - BATCH), starts


def _let_go(dataset: litdata.StreamingDataset) -> None:
    """Stops the thread of a dataset that was not read to its end, and unmaps its chunks."""
    reader = dataset.cache._reader
    if reader._prepare_thread is not None:
        reader._prepare_thread.force_stop()
        reader._prepare_thread.join()
    loader = reader._item_loader
    loader._buffers.clear()
    loader._mmaps.clear()
    gc.collect()


class LitDataWindows:
    """The first `LITDATA_BYTES` of a token file in LitData's chunks, and passes over them.

    LitData shuffles chunks, and windows within a chunk. The first four tokens of a window identify its start,
    because with random tokens no other window begins with the same four.
    """

    def __init__(self, path: Path, tokens: int) -> None:
        self.folder = path.parent / f"litdata-{tokens}"
        shutil.rmtree(self.folder, ignore_errors=True)
        data = np.memmap(path, "u2", "r", shape=(LITDATA_BYTES // 2 // tokens * tokens,))
        self.heads = np.ascontiguousarray(data.reshape(-1, tokens)[:, :4]).view("u8").reshape(-1)
        self.order = np.argsort(self.heads)
        cache = Cache(
            str(self.folder), chunk_bytes=LITDATA_CHUNK_BYTES, item_loader=litdata.TokensLoader(tokens)
        )
        step = tokens * 512
        for number, start in enumerate(range(0, len(data), step)):
            cache[number] = torch.from_numpy(np.array(data[start : start + step]))
        cache.done()
        cache.merge()

    def __call__(self, _path: Path, seed: int, rows: np.ndarray) -> tuple[float, np.ndarray]:
        tokens = rows.shape[1]
        for chunk in self.folder.glob("*.bin"):
            evict(chunk)
        begin = time.perf_counter()
        loader = litdata.TokensLoader(tokens)
        dataset = litdata.StreamingDataset(
            str(self.folder), item_loader=loader, shuffle=True, seed=seed % 2**32
        )
        for number, window in zip(range(len(rows)), dataset, strict=False):
            rows[number] = window.numpy()
        seconds = time.perf_counter() - begin
        window = None
        _let_go(dataset)
        heads = np.ascontiguousarray(rows[:, :4]).view("u8").reshape(-1)
        places = np.searchsorted(self.heads, heads, sorter=self.order).clip(max=len(self.order) - 1)
        return seconds, self.order[places].astype("u8") * tokens

    def remove(self) -> None:
        shutil.rmtree(self.folder)

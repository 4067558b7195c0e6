"""Contests of ``pagestream bench``: ways to read the same files, with a check of the bytes."""

from __future__ import annotations

import errno
import time
from dataclasses import dataclass
from importlib.util import find_spec
from itertools import islice
from typing import TYPE_CHECKING, Any

import numpy as np

from pagestream.files.mapped_file import MappedFile
from pagestream.loading.loader import TokenLoader
from pagestream.weights.checkpoint import open_checkpoint

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    import numpy.typing as npt

BATCH_SIZE, SEQUENCE_LENGTH = 64, 1024
# Tokens of the file: each differs from the previous one by this amount, modulo 2**16.
_STEP = 40_503
_CHUNK_TOKENS = 1 << 22
_MEBIBYTE = 1 << 20
# Number of batches per turn with a cold file.
_COLD_BATCHES = 32
# A file with more than this share of its pages in the page cache is not cold.
_COLD = 0.01
# Maximum wait of a turn for the previous turn's pages to leave the page cache.
_PATIENCE_SECONDS = 10.0
_WORKERS = 2
_ENDLESS = 1 << 40


class WrongBytesError(RuntimeError):
    """A way has returned bytes that differ from the file's."""


@dataclass(frozen=True)
class Contest:
    """The same work, done by pagestream and by other libraries.

    Attributes:
        title: The heading of its table.
        unit: The unit of work, ``"windows"`` or ``"bytes"``.
        ways: A function for each library, by the name in the table.
        files: Files to evict before each turn. Empty if they may be cached.
    """

    title: str
    unit: str
    ways: dict[str, Callable[[float, int], tuple[float, float]]]
    files: tuple[str, ...] = ()

    def turn(self, way: str, seconds: float, seed: int) -> float:
        """Returns the rate of one way, in units per second."""
        for path in self.files:
            _make_cold(path)
        amount, spent = self.ways[way](seconds, seed)
        return amount / spent


def write_token_file(path: str, nbytes: int) -> None:
    """Writes tokens in a pattern, so that each window can be verified."""
    with open(path, "wb") as file:
        for first in range(0, nbytes // 2, _CHUNK_TOKENS):
            places = np.arange(first, min(first + _CHUNK_TOKENS, nbytes // 2), dtype=np.uint64)
            file.write((places * _STEP).astype("<u2").tobytes())


def _make_cold(path: str) -> None:
    """Evicts a file. Mapped pages stay, and mappings of the previous turn may be closed a moment later.

    Raises:
        OSError: The pages stay.
    """
    begun = time.monotonic()
    while not can_be_cold(path):
        if time.monotonic() - begun > _PATIENCE_SECONDS:
            message = "its pages stay in the page cache: another program may have mapped it"
            raise OSError(errno.EBUSY, message, path)
        time.sleep(0.01)


def can_be_cold(path: str) -> bool:
    """Returns whether a file can be evicted. Files on tmpfs, for example, cannot."""
    with MappedFile(path) as file:
        file.evict()
        return file.residency().fraction <= _COLD


def of_tokens(path: str, *, is_cold: bool) -> Contest:
    """Returns the contest for batches of random windows."""
    makers = {"TokenLoader": by_loader, "np.memmap": by_memmap}
    if find_spec("torch") is not None:
        makers[f"torch's DataLoader ({_WORKERS} workers)"] = by_data_loader
    measured = _from_cold if is_cold else _timed
    ways = {name: _turn(measured, make, path) for name, make in makers.items()}
    if not is_cold:
        return Contest(f"random windows of {SEQUENCE_LENGTH:,} tokens, in the page cache", "windows", ways)
    title = f"the first {_COLD_BATCHES * BATCH_SIZE:,} random windows of {SEQUENCE_LENGTH:,} tokens, cold"
    return Contest(title, "windows", ways, (path,))


def _turn(
    measured: Callable[[Iterator[tuple[Any, Any]], float], tuple[float, float]],
    make: Callable[[str, int], Iterator[tuple[Any, Any]]],
    path: str,
) -> Callable[[float, int], tuple[float, float]]:
    return lambda seconds, seed: measured(make(path, seed), seconds)


def of_weights(path: str, *, is_cold: bool) -> Contest:
    """Returns the contest for a checkpoint. Every byte of it is used."""
    sums = {name: used(array) for name, array in open_checkpoint(path, ahead=False).items()}

    def load(arrays: Callable[[], Iterable[tuple[str, Any]]]) -> Callable[[float, int], tuple[float, float]]:
        def turn(seconds: float, seed: int) -> tuple[float, float]:
            del seconds, seed
            begun, found, nbytes = time.perf_counter(), {}, 0
            for name, array in arrays():
                found[name] = used(array)
                nbytes += array.nbytes
            spent = time.perf_counter() - begun
            if found != sums:
                message = "a way to load gave other bytes"
                raise WrongBytesError(message)
            return nbytes, spent

        return turn

    ways = {
        "pagestream load_file": load(lambda: _load_file("pagestream.safetensors.numpy", path)),
        "pagestream stream": load(lambda: open_checkpoint(path).stream()),
        "safetensors load_file": load(lambda: _load_file("safetensors.numpy", path)),
    }
    title = f"a safetensors file, {'cold' if is_cold else 'in the page cache'}"
    return Contest(title, "bytes", ways, (path,) if is_cold else ())


def write_checkpoint(path: str, nbytes: int) -> None:
    """Writes a safetensors file with tensors of 4 MiB."""
    from pagestream.safetensors.numpy import save_file

    random = np.random.default_rng(0)
    count = max(1, nbytes // (4 * _MEBIBYTE))
    save_file({f"layers.{number}": random.integers(0, 1 << 62, (64, 8192)) for number in range(count)}, path)


def _load_file(module: str, path: str) -> Iterable[tuple[str, Any]]:
    from importlib import import_module

    found: dict[str, Any] = import_module(module).load_file(path)
    return found.items()


def used(array: npt.NDArray[Any]) -> int:
    """Reads all bytes of an array, and returns their sum."""
    return int(array.view(np.uint64).sum(dtype=np.uint64))


def _timed(batches: Iterator[tuple[Any, Any]], seconds: float) -> tuple[float, float]:
    """Takes batches for some seconds, after the first one. Every tenth batch is verified."""
    prove(*next(batches))
    count, begun = 0, time.perf_counter()
    for count, (x, y) in enumerate(batches, 1):
        if time.perf_counter() - begun > seconds:
            break
        if count % 10 == 0:
            prove(x, y)
    return count * BATCH_SIZE, time.perf_counter() - begun


def _from_cold(batches: Iterator[tuple[Any, Any]], seconds: float) -> tuple[float, float]:
    """Takes the first batches. Later ones would mostly find pages that the kernel has already read ahead."""
    del seconds
    begun = time.perf_counter()
    taken = list(islice(batches, _COLD_BATCHES))
    spent = time.perf_counter() - begun
    for batch in taken:
        prove(*batch)
    return len(taken) * BATCH_SIZE, spent


def prove(x: Any, y: Any) -> None:  # noqa: ANN401 - arrays or tensors
    """Raises unless these are windows of a file from `write_token_file`."""
    both = np.concatenate([np.asarray(x)[:, :1], np.asarray(y)], axis=1)
    right = np.asarray(x).shape == (BATCH_SIZE, SEQUENCE_LENGTH) and np.array_equal(
        np.asarray(x), both[:, :-1]
    )
    if not right or not (np.diff(both) % (1 << 16) == _STEP).all():
        message = "a way to read gave other tokens"
        raise WrongBytesError(message)


def by_loader(path: str, seed: int) -> Iterator[tuple[Any, Any]]:
    """Yields batches of a `TokenLoader`, endlessly."""
    with TokenLoader(
        path,
        sequence_length=SEQUENCE_LENGTH,
        batch_size=BATCH_SIZE,
        seed=seed,
        epochs=None,
        rank=0,
        world_size=1,
    ) as loader:
        yield from loader


def by_memmap(path: str, seed: int) -> Iterator[tuple[Any, Any]]:
    """Yields batches in the way of nanoGPT's training script."""
    random = np.random.default_rng(seed)
    while True:
        tokens = np.memmap(path, np.uint16, "r")
        starts = random.integers(len(tokens) - SEQUENCE_LENGTH, size=BATCH_SIZE)
        x, y = (
            np.stack(
                [tokens[start + shift : start + shift + SEQUENCE_LENGTH].astype(np.int64) for start in starts]
            )
            for shift in (0, 1)
        )
        yield x, y


class Windows:
    """Windows for a DataLoader."""

    def __init__(self, path: str, seed: int) -> None:
        self.path, self.seed = path, seed

    def __len__(self) -> int:
        return _ENDLESS

    def __getitem__(self, index: int) -> tuple[Any, Any]:
        tokens = np.memmap(self.path, np.uint16, "r")
        start = np.random.default_rng((self.seed, index)).integers(len(tokens) - SEQUENCE_LENGTH)
        window = tokens[start : start + SEQUENCE_LENGTH + 1].astype(np.int64)
        return window[:-1], window[1:]


def by_data_loader(path: str, seed: int) -> Iterator[tuple[Any, Any]]:
    """Yields batches of torch's DataLoader with worker processes."""
    from torch.utils.data import DataLoader

    windows: Any = Windows(path, seed)
    yield from DataLoader(windows, BATCH_SIZE, num_workers=_WORKERS, sampler=range(_ENDLESS))

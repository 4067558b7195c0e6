"""Batches of token windows, page cache warm, x and y contiguous int64."""

from pathlib import Path

import numpy as np
import torch
from harness import Row, compare

from pagestream import TokenLoader

TITLE = "token batches, page cache warm"
TOKENS = 100_000_000


def measure(folder: Path) -> list[Row]:
    path = folder / "tokens"
    np.random.default_rng(0).integers(0, 50_000, TOKENS, "u2").tofile(path)
    kept = np.memmap(path, "u2", "r")
    rows = []
    for batch_size, length in ((64, 1024), (32, 4096)):
        windows = np.lib.stride_tricks.sliding_window_view(kept, length + 1)
        generator = np.random.default_rng(1)
        loader = TokenLoader(path, sequence_length=length, batch_size=batch_size)

        def nanogpt(batch_size: int = batch_size, length: int = length) -> tuple[torch.Tensor, torch.Tensor]:
            data = np.memmap(path, dtype=np.uint16, mode="r")
            starts = torch.randint(len(data) - length, (batch_size,)).tolist()
            x = torch.stack([torch.from_numpy(data[i : i + length].astype(np.int64)) for i in starts])
            y = torch.stack([torch.from_numpy(data[i + 1 : i + 1 + length].astype(np.int64)) for i in starts])
            return x, y

        def strided(
            windows: np.ndarray = windows, rows: int = batch_size, generator: np.random.Generator = generator
        ) -> tuple[np.ndarray, np.ndarray]:
            both = windows[generator.integers(0, len(windows), rows)]
            return both[:, :-1].astype("i8"), both[:, 1:].astype("i8")

        verify(path, length, batch_size, kept)
        contestants = {
            "TokenLoader": lambda loader=loader: next(loader),
            "nanoGPT get_batch": nanogpt,
            "strided NumPy gather": strided,
        }
        rows.append(compare(f"{batch_size} x {length}", contestants, seconds_per_sample=0.2))
        loader.close()
    return rows


def verify(path: Path, length: int, batch_size: int, tokens: np.ndarray) -> None:
    """The first batches hold the file's tokens, in the order that their numbers say."""
    with TokenLoader(path, sequence_length=length, batch_size=batch_size, order="sequential") as loader:
        for number in range(20):
            x, y = next(loader)
            first = number * batch_size * length
            expected = tokens[first : first + batch_size * length + 1]
            assert np.array_equal(x.reshape(-1), expected[:-1])
            assert np.array_equal(y.reshape(-1), expected[1:])

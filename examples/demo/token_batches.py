"""Ways to make batches of random windows, and a check that the file contains the windows."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from files import DemoError

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

    import numpy.typing as npt

Batch = tuple[Tensor, Tensor]
Shape = tuple[int, int]
"""Windows in a batch, tokens in a window."""


def nanogpt_batch(path: Path, shape: Shape, generator: torch.Generator | None = None) -> Batch:
    """Makes a batch like nanoGPT's `get_batch`, line by line: a new map, a copy of each window, a stack.

    https://github.com/karpathy/nanoGPT/blob/master/train.py
    """
    return windows_batch(np.memmap(path, dtype=np.uint16, mode="r"), shape, generator)


def windows_batch(
    data: npt.NDArray[np.uint16], shape: Shape, generator: torch.Generator | None = None
) -> Batch:
    """Makes the same batch from a map that stays open."""
    batch_size, block_size = shape
    ix = torch.randint(len(data) - block_size, (batch_size,), generator=generator)
    x = torch.stack([torch.from_numpy((data[i : i + block_size]).astype(np.int64)) for i in ix])
    y = torch.stack([torch.from_numpy((data[i + 1 : i + 1 + block_size]).astype(np.int64)) for i in ix])
    return x, y


def strided_batch(data: npt.NDArray[np.uint16], shape: Shape, generator: torch.Generator) -> Batch:
    """Makes a batch with NumPy at its best: one open map, and one index of a strided view for all windows."""
    windows, sequence_tokens = shape
    starts = torch.randint(len(data) - sequence_tokens, (windows,), generator=generator).numpy()
    every_window = np.lib.stride_tricks.sliding_window_view(data, sequence_tokens)
    x = torch.from_numpy(every_window[starts].astype(np.int64))
    y = torch.from_numpy(every_window[starts + 1].astype(np.int64))
    return x, y


def check(content: bytes, shape: Shape, name: str, batches: Iterable[Batch]) -> None:
    """Looks up each window in the file's content, with the following token.

    Args:
        content: The file's tokens, little-endian `uint16`.
        shape: The shape of x and of y.
        name: The reader of the batches.
        batches: The batches to check.

    Raises:
        DemoError: A window is not in the file, a batch differs from nanoGPT's in type or shape, or the
            same few windows keep repeating.
    """
    seen: list[bytes] = []
    for x, y in batches:
        if not (_as_nanogpt(x, shape) and _as_nanogpt(y, shape) and torch.equal(x[:, 1:], y[:, :-1])):
            message = f"{name} gave a batch of another type or shape, or with y that does not follow x"
            raise DemoError(message)
        windows = torch.cat([x, y[:, -1:]], 1).numpy()
        narrow = windows.astype("<u2")
        found = [window.tobytes() for window in narrow]
        if (narrow != windows).any() or not all(_is_in(content, window) for window in found):
            message = f"{name} gave a batch with tokens that are not in the file"
            raise DemoError(message)
        seen += found
    if len(set(seen)) <= len(seen) // 2:
        message = f"{name} gave {len(set(seen))} different windows of {len(seen)}; they should be random"
        raise DemoError(message)


def _as_nanogpt(tensor: Any, shape: Shape) -> bool:  # noqa: ANN401 - this checks the type
    return (
        isinstance(tensor, Tensor)
        and (tensor.dtype, tuple(tensor.shape)) == (torch.int64, shape)
        and tensor.is_contiguous()
    )


def _is_in(content: bytes, window: bytes) -> bool:
    """Returns whether the content contains these bytes at a token boundary."""
    place = content.find(window)
    while place >= 0 and place % 2:
        place = content.find(window, place + 1)
    return place >= 0

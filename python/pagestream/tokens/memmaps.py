"""`numpy.memmap` arrays of tokens: finds the file of an array, and its range in the file."""

from __future__ import annotations

import mmap
import os
from typing import Any

import numpy as np
import numpy.typing as npt

# Remedies for arrays in memory, and for memmaps.
_WRITE = "write it with write_tokens(path, array, dtype=...), and pass the path"
_REMEDY = "pass the path to open_tokens, with dtype="


def file_range(array: npt.NDArray[Any]) -> tuple[str, int, int]:
    """Returns the path of an array's file, and the array's range in the file, in elements.

    Raises:
        TypeError: The array is not a memmap of its file, or not one-dimensional.
        ValueError: The file cannot replace the array: the array has a step, or its own changes.
    """
    # Results of arithmetic also have the class memmap, but no mapping.
    mapping = getattr(array, "_mmap", None)
    if not isinstance(array, np.memmap) or mapping is None:
        message = f"tokens are read from files, and this array of shape {array.shape} is in memory; {_WRITE}"
        raise TypeError(message)
    if array.ndim != 1:
        message = f"this memmap has the shape {array.shape}; tokens are one-dimensional: pass reshape(-1)"
        raise TypeError(message)
    path = array.filename
    if path is None or array.mode == "c" or not array.flags.c_contiguous:
        reason = "has a step" if path else "does not know its path"
        if array.mode == "c":
            reason = 'has mode "c", so that its changes are not in the file'
        message = f"the tokens of this memmap cannot be read from its file, because it {reason}; {_REMEDY}"
        raise ValueError(message)
    # A slice keeps the `offset` of the original array, which determines where the mapping begins.
    begin = array.offset - array.offset % mmap.ALLOCATIONGRANULARITY
    begin += _address(array) - _address(np.frombuffer(mapping, np.uint8))
    first, rest = divmod(begin, array.itemsize)
    if rest:
        message = (
            f"{path}: this memmap begins at byte {begin}, which is not a multiple of {array.itemsize}; "
            f"{_REMEDY}"
        )
        raise ValueError(message)
    return os.fspath(path), first, first + array.size


def _address(array: npt.NDArray[Any]) -> int:
    return int(array.__array_interface__["data"][0])

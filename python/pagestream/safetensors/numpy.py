"""safetensors files and NumPy, with upstream's names."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from pagestream._common.keywords import advises
from pagestream._common.types import Mode, StrPath
from pagestream.safetensors import _defaults, _load, _upstream
from pagestream.safetensors._open import Backend

__all__ = ["load", "load_file", "save", "save_file"]


def __getattr__(name: str) -> Any:  # noqa: ANN401 - a module's attributes are of any type
    return _upstream.attribute("numpy", name)


@advises("safetensors.numpy.load_file")
def load_file(
    filename: StrPath,
    *,
    backend: Backend | None = None,
    mmap_mode: Mode | None = None,
    strict: bool | None = None,
    copy: bool | None = None,
    raw: bool = False,
    ahead: int | None = None,
) -> dict[str, npt.NDArray[Any]]:
    """Loads all tensors of a file as a dict of arrays, in the order of the file.

    An array is read on first use, unless ``copy=True`` or the file cannot be mapped. `safe_open` explains the
    consequences for a file that changes meanwhile. After `install`, arrays are copies by default, like
    upstream's.

    Args:
        filename: The file.
        backend: See `safe_open`.
        mmap_mode: See `safe_open`.
        strict: See `safe_open`.
        copy: See `safe_open`.
        raw: See `safe_open`.
        ahead: See `safe_open`. A file that is read ahead is in memory when this function returns.

    Raises:
        OSError: The file cannot be opened; with ``errno`` and ``filename``.
        SafetensorError: Not a valid safetensors file.
        MappedReadError: The file was truncated while it was read ahead or copied; or, with ``copy=True`` or
            in ``"read"`` mode, its storage failed.
        FileChangedError: The file was rewritten while it was read ahead or copied.

    Examples:
        >>> from pagestream.safetensors.numpy import load_file
        >>> load_file("model.safetensors")["bias"]
        array([0., 0., 0.], dtype=float32)
    """
    copy = _defaults.copies(copy, upstream_copies=True)
    options = {"backend": backend, "mmap_mode": mmap_mode, "strict": strict, "copy": copy, "raw": raw}
    return _load.load_file("numpy", filename, ahead=ahead, **options)


def load(data: Any, *, strict: bool | None = None) -> dict[str, npt.NDArray[Any]]:  # noqa: ANN401
    """Loads all tensors of a file in memory, as arrays with their own memory.

    Args:
        data: The file: bytes, bytearray, memoryview, or anything else with the buffer protocol.
        strict: See `safe_open`.

    Raises:
        SafetensorError: Not a valid safetensors file.

    Examples:
        >>> from pagestream.safetensors.numpy import load, save
        >>> load(save({"a": np.arange(3)}))["a"]
        array([0, 1, 2])
    """
    return _load.load("numpy", data, strict)


def save(tensor_dict: Mapping[str, npt.NDArray[Any]], metadata: dict[str, str] | None = None) -> bytes:
    """Returns a safetensors file of these arrays, as bytes.

    Args:
        tensor_dict: The arrays. Arrays that are not C-contiguous are copied; upstream stores them wrongly.
        metadata: The contents of ``__metadata__``.

    Raises:
        SafetensorError: A type that the format lacks, or a reserved name.

    Examples:
        >>> from pagestream.safetensors.numpy import load, save
        >>> load(save({"a": np.arange(4).reshape(2, 2).T}))["a"]
        array([[0, 2],
               [1, 3]])
    """
    return _upstream.save("numpy", _contiguous(tensor_dict), metadata)


def save_file(
    tensor_dict: Mapping[str, npt.NDArray[Any]], filename: StrPath, metadata: dict[str, str] | None = None
) -> None:
    """Saves these arrays to a file.

    The finished file replaces an old one, so tensors loaded from the old file keep their values. It takes
    over the old file's mode, owner and extended attributes; without an old file, its mode follows the umask.
    A symbolic link stays, and its target is replaced. If a rename is impossible, for example over a mount
    point, the old file is overwritten, unless this process still has tensors of it: then an error is raised.

    Args:
        tensor_dict: As for `save`.
        filename: The file to write.
        metadata: As for `save`.

    Raises:
        SafetensorError: As for `save`; or the file cannot be written.

    Examples:
        >>> from pagestream.safetensors.numpy import load_file, save_file
        >>> save_file({"a": np.arange(3)}, "a.safetensors")
        >>> load_file("a.safetensors")["a"]
        array([0, 1, 2])
    """
    _upstream.save_file("numpy", _contiguous(tensor_dict), filename, metadata)


def _contiguous(tensor_dict: Mapping[str, npt.NDArray[Any]]) -> dict[str, npt.NDArray[Any]]:
    """Returns the arrays in the form that upstream's writer needs: it reads addresses and ignores strides.

    https://github.com/huggingface/safetensors/issues/825
    """
    return {
        name: np.asarray(array, order="C") if isinstance(array, (np.ndarray, np.generic)) else array
        for name, array in tensor_dict.items()
    }

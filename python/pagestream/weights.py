"""Weights as a mapping from names to arrays: `open_checkpoint`, `Checkpoint`."""

from __future__ import annotations

import math
import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from pagestream import _environment, _native
from pagestream._closing import ClosedByWith
from pagestream._dtypes import numpy_dtype

if TYPE_CHECKING:
    import numpy.typing as npt

    from pagestream._environment import Mode
    from pagestream.mapping import StrPath

__all__ = ["Checkpoint", "TensorInfo", "open_checkpoint"]


@dataclass(frozen=True)
class TensorInfo:
    """What a header says of one tensor.

    Attributes:
        name: Its name.
        dtype: The element type by its safetensors name, such as ``"BF16"``.
        shape: Its dimensions, in elements.
        nbytes: Its size in bytes.
        path: The file that holds it.
        offset: Where its bytes begin in that file.

    Example:
        >>> from pagestream import open_checkpoint
        >>> open_checkpoint("model.safetensors").info("bias").nbytes
        12
    """

    name: str
    dtype: str
    shape: tuple[int, ...]
    nbytes: int
    path: str
    offset: int


class Checkpoint(ClosedByWith, Mapping[str, "npt.NDArray[Any]"]):
    """A safetensors file as a mapping from names to read-only arrays. Made by `open_checkpoint`.

    Arrays are views of the mapped file: having one costs no memory and reads nothing; its pages are
    read when it is used. They keep the mapping alive, beyond `close`. Where the file cannot be mapped,
    and for a tensor whose place in the file does not suit its type, they are copies.

    Names come in the order of the file. Pickling ships the path and opens the file again.

    Example:
        >>> from pagestream import open_checkpoint
        >>> weights = open_checkpoint("model.safetensors")
        >>> list(weights), weights["bias"]
        (['weight', 'bias'], array([0., 0., 0.], dtype=float32))
        >>> weights["bias"].flags.writeable
        False
    """

    def __init__(self, path: StrPath, mode: str, strict: bool) -> None:  # noqa: FBT001
        """Opens the file and reads its header."""
        self._file = _environment.logged(_native.WeightFile(os.fsencode(path), mode, strict))
        self._arguments = (mode, strict)

    @property
    def files(self) -> tuple[str, ...]:
        """The paths of the files."""
        return (self._file.path,)

    @property
    def metadata(self) -> dict[str, str] | None:
        """The header's ``__metadata__``; None if it has none."""
        return self._file.metadata()

    @property
    def mode(self) -> str:
        """How the file is read: ``"shared"``, ``"private"`` or ``"read"``; see `MappedFile`."""
        return self._file.mode

    @property
    def reason(self) -> str | None:
        """Why not in a better mode; None if in the first choice."""
        return self._file.reason

    @property
    def warnings(self) -> list[str]:
        """What the header has that the format does not know, as sentences."""
        return self._file.warnings

    # Equal is who is the same: comparing all arrays is not what `==` should do unasked.
    __eq__ = object.__eq__
    __hash__ = object.__hash__

    def __len__(self) -> int:
        """The number of tensors."""
        return len(self._file)

    def __iter__(self) -> Iterator[str]:
        """The names in the order of the file."""
        return iter(self._file.offset_keys())

    def __contains__(self, name: object) -> bool:
        """Whether there is a tensor of that name."""
        return isinstance(name, str) and name in self._file

    def __getitem__(self, name: str) -> npt.NDArray[Any]:
        """The tensor of that name, read-only.

        Raises:
            KeyError: There is none.
            FormatError: NumPy has no type for its elements.
            ValueError: The file is closed; or NumPy cannot make an array of this shape.
        """
        if not isinstance(name, str):
            raise KeyError(name)
        dtype_name, shape, _, buffer = self._file.tensor(name, False)  # noqa: FBT003
        dtype = numpy_dtype(dtype_name)
        if buffer is not None:
            array = np.ndarray(shape, dtype, buffer)
            if array.flags.aligned:
                return array
        array = self.read(name)
        array.flags.writeable = False
        return array

    def read(self, name: str, *, out: npt.NDArray[Any] | None = None) -> npt.NDArray[Any]:
        """Copies a tensor out.

        Args:
            name: Its name.
            out: Where to, of the tensor's shape and type and C-contiguous. None makes a new array.

        Returns:
            `out`, or the new array, which is the caller's own.

        Raises:
            KeyError: There is no such tensor.
            ValueError: `out` does not fit; or the file is closed.
            FormatError: NumPy has no type for its elements.
            MappedReadError: The file was cut or its storage failed.
            FileChangedError: The file was rewritten since it was opened.

        Example:
            >>> from pagestream import open_checkpoint
            >>> open_checkpoint("model.safetensors").read("bias")
            array([0., 0., 0.], dtype=float32)
        """
        dtype_name, shape, _, _ = self._file.info(name)
        dtype = numpy_dtype(dtype_name)
        if out is None:
            out = np.empty(shape, dtype)
        elif (out.shape, out.dtype) != (shape, dtype) or not out.flags.c_contiguous:
            message = f"{name!r} is of shape {shape} and type {dtype}; out is {out.shape} and {out.dtype}"
            raise ValueError(message)
        if math.prod(shape):
            # By way of bytes: NumPy does not export the types of ml_dtypes as buffers.
            self._file.read_into(name, out.reshape(-1).view(np.uint8))
        return out

    def info(self, name: str) -> TensorInfo:
        """What the header says of a tensor.

        Raises:
            KeyError: There is no such tensor.

        Example:
            >>> from pagestream import open_checkpoint
            >>> open_checkpoint("model.safetensors").info("weight").shape
            (2, 3)
        """
        dtype, shape, nbytes, offset = self._file.info(name)
        return TensorInfo(name, dtype, shape, nbytes, self._file.path, offset)

    def check(self) -> None:
        """Raises if the file is no longer the one that was opened; see `MappedFile.check`.

        Raises:
            FileChangedError: Cut, grown, rewritten, deleted or replaced.

        Example:
            >>> from pagestream import open_checkpoint
            >>> open_checkpoint("model.safetensors").check()
        """
        self._file.check()

    def close(self) -> None:
        """Closes the file. Arrays that are out stay valid until they die.

        Example:
            >>> from pagestream import open_checkpoint
            >>> open_checkpoint("model.safetensors").close()
        """
        self._file.close()

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickles as the absolute path and what it was opened with."""
        return type(self), (self._file.absolute_path, *self._arguments)

    def __repr__(self) -> str:
        """Path and number of tensors."""
        return f"<{type(self).__name__} {self._file.path!r} {len(self)} tensors>"


def open_checkpoint(path: StrPath, *, mmap_mode: Mode | None = None, strict: bool = True) -> Checkpoint:
    """Opens a safetensors file. Only its header is read.

    Format: https://github.com/huggingface/safetensors#format

    Args:
        path: The file.
        mmap_mode: How to open; see `MappedFile`. None means ``PAGESTREAM_MMAP_MODE`` or ``"auto"``.
        strict: Whether to refuse headers that the format disallows though upstream accepts them,
            duplicate names above all.

    Returns:
        The mapping.

    Raises:
        OSError: The file cannot be opened; with ``errno`` and ``filename``.
        SafetensorError: It is not a valid safetensors file; the message says what was found, what was
            expected and where.

    Example:
        >>> from pagestream import open_checkpoint
        >>> open_checkpoint("model.safetensors")["weight"].shape
        (2, 3)
    """
    return Checkpoint(path, _environment.mmap_mode(mmap_mode), strict)

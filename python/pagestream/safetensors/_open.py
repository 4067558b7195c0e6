"""`safe_open`."""

from __future__ import annotations

import os
from functools import partial
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from pagestream import _environment, _native
from pagestream._dtypes import numpy_dtype
from pagestream.errors import FormatError, SafetensorError
from pagestream.safetensors._slice import PySafeSlice

if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Self

    from pagestream._environment import Mode
    from pagestream.mapping import StrPath

__all__ = ["safe_open"]

Backend = Literal["mmap", "pread"]

_COPY_ON_WRITE = "arrays and tensors can be written: they lie on copy-on-write pages"


class safe_open:  # noqa: N801 - upstream's name
    """A safetensors file, open for reading. Upstream's class of that name, and more.

    Upstream: https://huggingface.co/docs/safetensors/api/torch#safetensors.safe_open

    Tensors are not copied. They can be written: a page is copied when it is first written, so that
    neither the file nor another `safe_open` of it changes. Two tensors of one name from one handle
    share their memory, as they do upstream for torch.

    Args:
        filename: The file.
        framework: ``"pt"``, ``"torch"`` or ``"pytorch"``; ``"np"`` or ``"numpy"``.
        device: Where torch tensors go. Only ``"cpu"`` for NumPy.
        backend: Upstream's word for how to read: ``"mmap"`` is ``mmap_mode="auto"``, ``"pread"`` is
            ``mmap_mode="read"``.
        mmap_mode: How to open; see `MappedFile`. With ``"shared"``, NumPy arrays are read-only views of
            the page cache; torch tensors, which have no read-only flag, still get pages of their own.
        strict: Whether to refuse headers that the format disallows though upstream accepts them.
        copy: Whether to copy tensors into memory of their own, which no later fault of the file can
            reach.

    Raises:
        OSError: The file cannot be opened; with ``errno`` and ``filename``.
        SafetensorError: Not a valid safetensors file, or an unknown framework.
        ValueError: `backend` and `mmap_mode` are at odds, or an unknown word.

    Example:
        >>> from pagestream.safetensors import safe_open
        >>> with safe_open("model.safetensors", framework="np") as f:
        ...     f.keys(), f.get_tensor("bias")
        (['bias', 'weight'], array([0., 0., 0.], dtype=float32))
    """

    def __init__(
        self,
        filename: StrPath,
        framework: str,
        device: Any = "cpu",  # noqa: ANN401 - a str, an int or a torch.device
        *,
        backend: Backend | None = None,
        mmap_mode: Mode | None = None,
        strict: bool = True,
        copy: bool = False,
    ) -> None:
        """Opens the file and reads its header."""
        self._mode = _mode(backend, mmap_mode)
        self._copy = copy
        self._make = _maker(framework, device)
        self._views_read_only = self._mode == "shared" and framework in _NUMPY
        self._file = _native.WeightFile(os.fsencode(filename), self._mode, strict)
        self._refusal = None if self._views_read_only else self._file.copy_on_write_refusal()

    @property
    def mode(self) -> str:
        """What tensors stand on.

        ``"shared"`` (read-only views), ``"private"`` (copy-on-write pages) or ``"read"`` (copies).
        """
        if self._copy or self._refusal is not None:
            return "read"
        return self._file.mode if self._views_read_only else "private"

    @property
    def reason(self) -> str | None:
        """Why they do not stand on the shared mapping; None if they do."""
        if self._copy:
            return "copy=True"
        if self._refusal is not None:
            return None if self._mode == "read" else self._refusal
        return self._file.reason or (None if self._views_read_only else _COPY_ON_WRITE)

    def keys(self) -> list[str]:
        """The names of the tensors, sorted.

        Example:
            >>> from pagestream.safetensors import safe_open
            >>> safe_open("model.safetensors", "np").keys()
            ['bias', 'weight']
        """
        return self._open().keys()

    def offset_keys(self) -> list[str]:
        """The names in the order of the data; empty tensors that share a place by name.

        Example:
            >>> from pagestream.safetensors import safe_open
            >>> safe_open("model.safetensors", "np").offset_keys()
            ['weight', 'bias']
        """
        return self._open().offset_keys()

    def metadata(self) -> dict[str, str] | None:
        """The header's ``__metadata__``; None if it has none.

        Example:
            >>> from pagestream.safetensors import safe_open
            >>> safe_open("model.safetensors", "np").metadata()
            {'format': 'np'}
        """
        return self._open().metadata()

    def get_tensor(self, name: str) -> Any:  # noqa: ANN401 - an array or a tensor
        """One tensor, as the framework's type.

        Raises:
            SafetensorError: No tensor of that name, or the file is closed, or the framework has no type
                for its elements.
            MappedReadError: In ``"read"`` mode or with ``copy=True``: the file was cut or its storage
                failed.

        Example:
            >>> from pagestream.safetensors import safe_open
            >>> safe_open("model.safetensors", "np").get_tensor("weight").shape
            (2, 3)
        """
        try:
            dtype, shape, nbytes, buffer = self._open().tensor(name, not self._views_read_only)
        except KeyError:
            message = f"{self._file.path}: File does not contain tensor {name}"
            raise SafetensorError(message) from None
        if self._copy:
            buffer = None
        tensor = self._make(dtype, shape, nbytes, buffer, partial(self._file.read_into, name))
        if self._views_read_only and not self._copy:
            tensor.flags.writeable = False  # also where it had to be a copy, for being misaligned
        return tensor

    def get_slice(self, name: str) -> PySafeSlice:
        """One tensor, of which only the part is read that is then asked for in brackets.

        Raises:
            SafetensorError: No tensor of that name, or the file is closed.

        Example:
            >>> from pagestream.safetensors import safe_open
            >>> safe_open("model.safetensors", "np").get_slice("weight")[0, ::-2]
            array([1., 1.])
        """
        try:
            stored = self._open().stored(name)
        except KeyError:
            message = f"{self._file.path}: File does not contain tensor {name}"
            raise SafetensorError(message) from None
        return PySafeSlice(stored, self._make, views=not self._copy, read_only=self._views_read_only)

    def check(self) -> None:
        """Raises if the file is no longer the one that was opened; see `MappedFile.check`.

        Raises:
            FileChangedError: Cut, grown, rewritten, deleted or replaced.

        Example:
            >>> from pagestream.safetensors import safe_open
            >>> safe_open("model.safetensors", "np").check()
        """
        self._open().check()

    def _open(self) -> _native.WeightFile:
        if self._file.closed:
            message = f"{self._file.path}: File is closed"
            raise SafetensorError(message)
        return self._file

    def __enter__(self) -> Self:
        """Returns itself; the end of the ``with`` block closes the file. Tensors stay valid."""
        return self

    def __exit__(self, *_exception: object) -> None:
        """Closes the file."""
        self._file.close()


def _mode(backend: Backend | None, mmap_mode: Mode | None) -> str:
    """One word out of upstream's argument and ours."""
    if backend is None:
        return _environment.mmap_mode(mmap_mode)
    if backend not in ("mmap", "pread"):
        message = f'backend is "mmap" or "pread", not {backend!r}'
        raise ValueError(message)
    asked = "auto" if backend == "mmap" else "read"
    if mmap_mode is not None and (mmap_mode == "read") != (asked == "read"):
        message = f"backend={backend!r} and mmap_mode={mmap_mode!r} contradict each other; give one"
        raise ValueError(message)
    return mmap_mode or asked


_TORCH = ("pt", "torch", "pytorch")
_NUMPY = ("np", "numpy")
_LATER = ("tf", "tensorflow", "jax", "flax", "mlx", "paddle")


def _maker(framework: str, device: Any) -> Callable[..., Any]:  # noqa: ANN401
    """The function that makes a framework's tensor out of a buffer, or out of a copy."""
    if framework in _TORCH:
        from pagestream.safetensors.torch import _device, _tensor

        return partial(_tensor, device=_device(device))
    if framework in _NUMPY:
        if device != "cpu":
            message = f"NumPy arrays are on the device 'cpu', not {device!r}"
            raise SafetensorError(message)
        return _array
    if framework in _LATER:
        message = f"framework {framework} is not supported yet; use 'np' and convert"
        raise SafetensorError(message)
    message = f"framework {framework} is invalid"
    raise SafetensorError(message)


def _array(
    dtype_name: str,
    shape: tuple[int, ...],
    nbytes: int,
    buffer: Any,  # noqa: ANN401 - anything with the buffer protocol
    read_into: Callable[[Any], None],
) -> np.ndarray[Any, Any]:
    """A NumPy array over `buffer`; a copy if there is none, or if it is misaligned for the type."""
    try:
        dtype = numpy_dtype(dtype_name)
    except FormatError as error:
        raise SafetensorError(*error.args) from error
    if buffer is not None:
        array = np.ndarray(shape, dtype, buffer)
        if array.flags.aligned:
            return array
    array = np.empty(shape, dtype)
    if nbytes:
        read_into(array.reshape(-1).view(np.uint8))
    return array

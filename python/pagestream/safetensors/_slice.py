"""`PySafeSlice`: a tensor of which a part is read."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any, Protocol

from pagestream import _selection
from pagestream._dtypes import item_bytes
from pagestream.errors import SafetensorError, SliceError

if TYPE_CHECKING:
    from collections.abc import Callable

    from pagestream import _native
    from pagestream._selection import Index

__all__ = ["PySafeSlice"]


class Maker(Protocol):
    """What makes a framework's tensor: the one thing that differs from framework to framework."""

    def __call__(
        self,
        dtype_name: str,
        shape: tuple[int, ...],
        nbytes: int,
        buffer: Any,  # noqa: ANN401 - anything with the buffer protocol
        read_into: Callable[[Any], None],
        /,
    ) -> Any:  # noqa: ANN401 - an array or a tensor
        """A tensor over `buffer`; if that is None or misaligned, over memory that `read_into` fills.

        Args:
            dtype_name: The element type by its safetensors name.
            shape: In elements.
            nbytes: What the elements take. If 0, neither `buffer` nor `read_into` is used.
            buffer: Memory with the elements, or None.
            read_into: Fills a writable buffer of that size.
        """


class PySafeSlice:
    """A tensor that is read by parts. Upstream's class of that name; made by ``safe_open.get_slice``.

    Its brackets take what NumPy's basic indexing takes, in NumPy's meaning, whatever the framework: ints,
    slices with any step (negative ones give a reversed copy in torch as well), ``...`` and None. A slice
    that reaches beyond the end is clipped (upstream refuses ``[:20]`` of ten rows; NumPy and torch do not).

    Only the bytes that are needed are read. What lies in the file as one run is not copied at all where
    the file is mapped, as with ``get_tensor``; anything else gets memory of its own, which can be written.
    It keeps the file open, also when the `safe_open` is closed.

    Example:
        >>> from pagestream.safetensors import safe_open
        >>> with safe_open("model.safetensors", "np") as f:
        ...     weight = f.get_slice("weight")
        >>> weight.get_shape(), weight[:, 1]
        ([2, 3], array([1., 1.]))
    """

    def __init__(
        self, stored: _native.StoredTensor, make: Maker, *, views: bool = True, read_only: bool = False
    ) -> None:
        """A tensor of which parts are made by `make`.

        Args:
            stored: The tensor.
            make: Makes the framework's tensors.
            views: Whether they may stand on the mapping.
            read_only: Whether those that do are read-only.
        """
        self._stored = stored
        self._make = make
        self._views = views
        self._read_only = read_only

    def get_shape(self) -> list[int]:
        """The whole tensor's dimensions, as they stand in the file.

        Example:
            >>> from pagestream.safetensors import safe_open
            >>> safe_open("model.safetensors", "np").get_slice("weight").get_shape()
            [2, 3]
        """
        return list(self._stored.shape)

    def get_dtype(self) -> str:
        """The element type by its safetensors name.

        Example:
            >>> from pagestream.safetensors import safe_open
            >>> safe_open("model.safetensors", "np").get_slice("bias").get_dtype()
            'F32'
        """
        return self._stored.dtype

    def __getitem__(self, index: Index) -> Any:  # noqa: ANN401 - an array or a tensor
        """The part that `index` selects.

        F4 elements lie two in a byte: torch counts the pairs, and so does an index along the last dimension.

        Raises:
            SliceError: The index is out of range or not basic indexing; a `SafetensorError` and an
                ``IndexError``.
            SafetensorError: The framework has no type for the elements.
            MappedReadError: The file was cut or its storage failed.
            FileChangedError: The file was rewritten since it was opened.
        """
        dtype_name, shape = self._stored.dtype, self._stored.shape
        if dtype_name in ("F4", "F6_E2M3", "F6_E3M2"):
            return self._pairs(dtype_name, shape, index)
        return self._part(dtype_name, shape, item_bytes(dtype_name), index)

    def _part(self, dtype_name: str, shape: tuple[int, ...], item_bytes: int, index: Index) -> Any:  # noqa: ANN401
        found = _selection.select(shape, index, SliceError)
        first, nbytes = found.first * item_bytes, found.count * item_bytes
        strides = [stride * item_bytes for stride in found.strides]
        read = partial(self._stored.read_selection, first, found.shape, strides, item_bytes)
        if not (found.is_run and self._views and nbytes):
            return self._make(dtype_name, found.shape, nbytes, None, read)
        buffer = self._stored.view(first, nbytes, not self._read_only)
        tensor = self._make(dtype_name, found.shape, nbytes, buffer, read)
        if self._read_only:
            tensor.flags.writeable = False  # also where it had to be a copy, for being misaligned
        return tensor

    def _pairs(self, dtype_name: str, shape: tuple[int, ...], index: Index) -> Any:  # noqa: ANN401
        """Elements smaller than a byte: bytes, seen as the framework's type for what is in them."""
        kind = self._make(dtype_name, (0,), 0, None, _nothing).dtype  # refused where there is no such type
        if not shape or shape[-1] % 2 or kind.itemsize != 1:
            message = (
                f"{self._stored.path}: slices of {dtype_name} elements are of whole pairs, but the last "
                f"dimension of {list(shape)} is odd"
            )
            raise SafetensorError(message)
        return self._part("U8", (*shape[:-1], shape[-1] // 2), 1, index).view(kind)

    def __repr__(self) -> str:
        """Type and shape."""
        return f"<{type(self).__name__} {self._stored.dtype} {self.get_shape()} of {self._stored.path!r}>"


def _nothing(_buffer: object) -> None:
    """For a tensor without elements."""

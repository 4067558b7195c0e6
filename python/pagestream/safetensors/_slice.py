"""`PySafeSlice`: a tensor of which a part is read."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from pagestream.errors import SafetensorError, SliceError
from pagestream.safetensors._frameworks import numpy_array
from pagestream.weights import indexing
from pagestream.weights.arrays import reader, unpacked_part
from pagestream.weights.dtypes import SUB_BYTE_BITS, itemsize, raw_shape
from pagestream.weights.indexing import is_advanced

if TYPE_CHECKING:
    from collections.abc import Callable

    from pagestream import _native
    from pagestream.safetensors._frameworks import Maker
    from pagestream.weights.indexing import Index

__all__ = ["PySafeSlice"]


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
        self,
        stored: _native.StoredTensor,
        make: Maker,
        *,
        views: bool,
        read_only: bool,
        raw: bool,
        is_torch: bool,
        convert: Callable[[str, Any], Any] | None,
    ) -> None:
        """A tensor of which parts are made by `make`.

        Args:
            stored: The tensor.
            make: Makes the framework's tensors.
            views: Whether they may stand on the mapping.
            read_only: Whether those that do are read-only.
            raw: Whether it is bytes that are indexed, and given.
            is_torch: Whether the framework is torch, which has a type for pairs of elements of 4 bits and not
                for one, and takes lists and tensors as an index.
            convert: Makes the framework's tensor of a NumPy array; None for NumPy and torch themselves.
        """
        self._stored = stored
        self._make = make
        self._views = views
        self._read_only = read_only
        self._raw = raw
        self._is_torch = is_torch
        self._convert = convert

    def get_shape(self) -> list[int]:
        """The whole tensor's dimensions, in elements; with ``raw=True`` in bytes.

        Example:
            >>> from pagestream.safetensors import safe_open
            >>> safe_open("model.safetensors", "np").get_slice("weight").get_shape()
            [2, 3]
        """
        return list(self._shape())

    def get_dtype(self) -> str:
        """The element type by its safetensors name.

        Example:
            >>> from pagestream.safetensors import safe_open
            >>> safe_open("model.safetensors", "np").get_slice("bias").get_dtype()
            'F32'
        """
        return "U8" if self._raw else self._stored.dtype

    def _shape(self) -> tuple[int, ...]:
        stored = self._stored
        return raw_shape(stored.dtype, stored.shape, stored.nbytes) if self._raw else stored.shape

    def __getitem__(self, index: Index) -> Any:  # noqa: ANN401 - an array or a tensor
        """The part that `index` selects.

        For torch, lists and tensors of ints and masks are taken too, in torch's meaning, as upstream does: of
        one list among slices the span from its least to its largest is read, else the whole tensor.

        Two F4 elements share a byte: torch counts the pairs, and so does an index along the last dimension.
        For other frameworks whole rows of such elements are read.

        Raises:
            SliceError: The index is out of range or not basic indexing; a `SafetensorError` and an
                ``IndexError``.
            SafetensorError: The framework has no type for the elements.
            MappedReadError: The file was cut or its storage failed.
            FileChangedError: The file was rewritten since it was opened.
        """
        if self._is_torch and is_advanced(index):
            from pagestream.safetensors.torch import _advanced_part

            return _advanced_part(self, index)
        dtype_name, shape = self.get_dtype(), self._shape()
        if dtype_name not in SUB_BYTE_BITS:
            return self._part(dtype_name, shape, index)
        if self._is_torch:
            return self._pairs(dtype_name, shape, index)
        array = unpacked_part(self._stored, index, numpy_array, SliceError)
        return array if self._convert is None else self._convert(dtype_name, array)

    def _part(self, dtype_name: str, shape: tuple[int, ...], index: Index) -> Any:  # noqa: ANN401
        item_bytes = itemsize(dtype_name)
        found = indexing.select(shape, index, SliceError)
        nbytes, read = found.count * item_bytes, reader(self._stored, found, item_bytes)
        if not (found.is_run and self._views and nbytes):
            return self._make(dtype_name, found.shape, nbytes, 0, None, read)
        buffer = self._stored.view(found.first * item_bytes, nbytes, not self._read_only)
        tensor = self._make(dtype_name, found.shape, nbytes, 0, buffer, read)
        if self._read_only:
            tensor.flags.writeable = False  # also where it had to be a copy, for being misaligned
        return tensor

    def _pairs(self, dtype_name: str, shape: tuple[int, ...], index: Index) -> Any:  # noqa: ANN401
        """Elements smaller than a byte: bytes, seen as the framework's type for what is in them."""
        kind = self._make(dtype_name, (0,), 0, 0, None, _nothing).dtype  # refused where there is no such type
        if not shape or shape[-1] % 2 or kind.itemsize != 1:
            message = (
                f"{self._stored.path}: slices of {dtype_name} elements are of whole pairs, but the last "
                f"dimension of {list(shape)} is odd"
            )
            raise SafetensorError(message)
        return self._part("U8", (*shape[:-1], shape[-1] // 2), index).view(kind)

    def __repr__(self) -> str:
        """Type and shape."""
        return f"<{type(self).__name__} {self.get_dtype()} {self.get_shape()} of {self._stored.path!r}>"


def _nothing(_buffer: object) -> None:
    """For a tensor without elements."""

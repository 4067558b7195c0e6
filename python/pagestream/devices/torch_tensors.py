"""torch tensors from the bytes of a file. Importing this imports torch."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Any

import torch
from torch._C._functorch import get_unwrapped, is_functorch_wrapped_tensor
from torch._functorch.pyfunctorch import temporarily_clear_interpreter_stack

from pagestream.devices.constructors import (
    CPU,
    as_tensor,
    empty,
    makes_fakes,
    over_array,
    over_memory,
    stored,
)
from pagestream.errors import SafetensorError, SliceError
from pagestream.weights import indexing
from pagestream.weights.arrays import Framework
from pagestream.weights.dtypes import NAMES

if TYPE_CHECKING:
    from collections.abc import Iterator
    from types import EllipsisType

    import numpy as np
    import numpy.typing as npt

    from pagestream import _native
    from pagestream._common.types import Buffer
    from pagestream.weights.indexing import Index

# torch uses NumPy's names, except for F4, which packs two elements into a byte. Types missing from this torch
# version are left out, and a file with such a type is rejected.
TYPES: dict[str, torch.dtype] = {
    element: getattr(torch, name)
    for element, name in {**NAMES, "F4": "float4_e2m1fn_x2"}.items()
    if hasattr(torch, name)
}
_STORED = {element: stored(kind) for element, kind in TYPES.items()}


class TorchTensors(Framework):
    """torch tensors on the CPU.

    Under a `FakeTensorMode` they are fake, and no bytes of the file are read.
    """

    # The device of new tensors. torch's default device is ignored.
    new_on = CPU
    # Elements smaller than a byte have no entry: torch counts them in pairs.
    plain = (over_array, {name: kind for name, kind in _STORED.items() if name != "F4"})

    def over(
        self, dtype: str, shape: tuple[int, ...], nbytes: int, offset: int, buffer: Buffer | None
    ) -> torch.Tensor:
        """Creates a tensor, over a buffer on the CPU. Memory of a file must be writable."""
        kind = _STORED.get(dtype) or stored(dtype_named(dtype))
        shape = shape_in_torch(dtype, shape)
        try:
            if buffer is None or not nbytes:
                return empty(shape, kind.dtype, self.new_on)
            return over_memory(buffer, kind, shape, nbytes // kind.held.itemsize, offset)
        except (OverflowError, RuntimeError, TypeError) as error:
            # Only the first line, because C++ frames follow it.
            reason = str(error).partition("\n")[0]
            message = f"torch cannot make a tensor of {dtype} elements and shape {list(shape)}: {reason}"
            raise SafetensorError(message) from error

    # Not a method of its own, which would take a tenth of a microsecond per tensor.
    reads_nothing = staticmethod(makes_fakes)

    def is_aligned(self, tensor: torch.Tensor) -> bool:
        """Returns whether the elements begin at a multiple of their size."""
        try:
            return not tensor.data_ptr() % tensor.itemsize
        except RuntimeError:
            with _unwrapped(tensor) as inner:
                return not inner.data_ptr() % inner.itemsize

    def bytes_of(self, tensor: torch.Tensor) -> npt.NDArray[np.uint8]:
        """Returns a view of a CPU tensor's memory."""
        try:
            return tensor.reshape(-1).view(torch.uint8).numpy()
        except RuntimeError:
            with _unwrapped(tensor) as inner:
                return inner.reshape(-1).view(torch.uint8).numpy()

    def part(self, stored: _native.StoredTensor, index: Index) -> torch.Tensor:
        """Creates a part. If `index` has lists or tensors, torch's own indexing is used.

        Raises:
            SliceError: torch rejects the index.
        """
        if not indexing.is_advanced(index):
            return super().part(stored, index)  # type: ignore[no-any-return]
        parts: tuple[Any, ...] = index if isinstance(index, tuple) else (index,)
        _, shape = self.described(stored.dtype, stored.shape, stored.nbytes)
        # Under a `FakeTensorMode`, the numbers in a list are unknown.
        narrowed = None if makes_fakes() else _narrowed(parts, list(shape))
        try:
            if narrowed is None:
                return super().part(stored, ...)[index]  # type: ignore[no-any-return]
            basic, dimension, places = narrowed
            return super().part(stored, basic).index_select(dimension, places)  # type: ignore[no-any-return]
        except SafetensorError:
            raise
        except (IndexError, RuntimeError, TypeError, ValueError) as error:
            message = f"index {index!r} of a tensor of shape {list(shape)}: {error}"
            raise SliceError(message) from error

    def sub_byte_part(self, stored: _native.StoredTensor, index: Index) -> torch.Tensor:
        """Creates a part of bytes, and views it as torch's type for pairs of elements."""
        kind = dtype_named(stored.dtype)  # raises if there is no such type
        shape = stored.shape
        if not shape or shape[-1] % 2 or kind.itemsize != 1:
            message = (
                f"slices of {stored.dtype} elements are of whole pairs, but the last dimension of "
                f"{list(shape)} is odd"
            )
            raise SafetensorError(message)
        pairs = self.basic_part(stored, "U8", (*shape[:-1], shape[-1] // 2), index)
        return pairs.view(kind)  # type: ignore[no-any-return]


@contextlib.contextmanager
def _unwrapped(tensor: torch.Tensor) -> Iterator[torch.Tensor]:
    """Gives access to a tensor's memory, which torch hides, for example inside `torch.func.grad`."""
    with temporarily_clear_interpreter_stack():
        while is_functorch_wrapped_tensor(tensor):
            tensor = get_unwrapped(tensor)
        yield tensor


def shape_in_torch(dtype: str, shape: tuple[int, ...]) -> tuple[int, ...]:
    """Returns the shape of a tensor in torch, which counts F4 elements in pairs, two per byte.

    Raises:
        SafetensorError: The last dimension has half a pair.
    """
    if dtype != "F4":
        return shape
    if not shape or shape[-1] % 2:
        message = f"torch counts F4 elements in pairs; the last dimension of {list(shape)} is odd"
        raise SafetensorError(message)
    return (*shape[:-1], shape[-1] // 2)


def dtype_named(name: str) -> torch.dtype:
    """Returns the torch type of a safetensors element type.

    Raises:
        SafetensorError: This torch version lacks the type.
    """
    if name in TYPES:
        return TYPES[name]
    message = (
        f"torch {torch.__version__} has no type for {name} elements; "
        'safe_open(path, "pt", raw=True) gives their bytes'
    )
    raise SafetensorError(message)


def _narrowed(
    parts: tuple[Any, ...], shape: list[int]
) -> tuple[tuple[slice | EllipsisType, ...], int, torch.Tensor] | None:
    """Narrows a list of ints among slices to enclosing slices, the list's dimension, and its places in them.

    Returns None if torch's indexing means more than that.
    """
    lists = [place for place, part in enumerate(parts) if not isinstance(part, slice) and part is not ...]
    dots = sum(part is ... for part in parts)
    if len(lists) != 1 or dots > 1 or len(parts) > len(shape) + dots:
        return None
    places = as_tensor(parts[lists[0]], device="cpu")
    if places.ndim != 1 or not places.numel() or places.dtype not in (torch.int64, torch.int32):
        return None
    behind = len(parts) - 1 - lists[0]
    dimension = len(shape) - 1 - behind if any(part is ... for part in parts[: lists[0]]) else lists[0]
    size = shape[dimension]
    if not bool(((places >= -size) & (places < size)).all()):
        return None  # torch reports the problem
    places = torch.where(places < 0, places + size, places).to(torch.int64)
    least, largest = int(places.min()), int(places.max())
    basic = (*parts[: lists[0]], slice(least, largest + 1), *parts[lists[0] + 1 :])
    return basic, dimension, places - least

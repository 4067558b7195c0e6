"""NumPy arrays over, or copied out of, the bytes of a safetensors file."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from pagestream.errors import FormatError
from pagestream.weights import indexing
from pagestream.weights.dtypes import SUB_BYTE_BITS, numpy_dtype, unpack

if TYPE_CHECKING:
    from collections.abc import Callable

    import numpy.typing as npt

    from pagestream import _native
    from pagestream.weights.indexing import Index

    # Fills a writable buffer.
    Filler = Callable[[Any], None]

# What to do with a tensor that is misaligned in its file.
Align = Literal["copy", "view", "error"]


def over(
    dtype: str,
    shape: tuple[int, ...],
    nbytes: int,
    offset: int,
    buffer: Any,  # noqa: ANN401 - anything with the buffer protocol
    read_into: Filler,
    *,
    align: Align = "copy",
) -> npt.NDArray[Any]:
    """Makes an array over `buffer`, or a copy.

    Args:
        dtype: The element type by its safetensors name.
        shape: The dimensions, in elements.
        nbytes: The size of the elements in the file.
        offset: Where the elements begin in the buffer, in bytes.
        buffer: Memory with the elements; None makes a copy.
        read_into: Fills memory of `nbytes` with the elements, for a copy.
        align: What to do with elements that are misaligned in `buffer`.

    Raises:
        FormatError: NumPy has no such type or shape; or the elements are misaligned, and ``align="error"``.
    """
    numpy_type = numpy_dtype(dtype)
    if dtype in SUB_BYTE_BITS:
        packed = np.empty(nbytes, np.uint8)
        if nbytes:
            read_into(packed)
        return unpack(packed, dtype, shape)
    try:
        if buffer is not None:
            array: npt.NDArray[Any] = np.ndarray(shape, numpy_type, buffer, offset)
            if array.flags.aligned or align == "view":
                return array
            if align == "error":
                raise FormatError(misaligned(dtype))  # noqa: TRY301
        array = np.empty(shape, numpy_type)
    except FormatError:
        raise
    except (OverflowError, ValueError) as error:
        message = f"NumPy cannot make an array of {dtype} elements and shape {list(shape)}: {error}"
        raise FormatError(message) from error
    if nbytes:
        # By way of bytes: NumPy does not export the types of ml_dtypes as buffers.
        read_into(array.reshape(-1).view(np.uint8))
    return array


def misaligned(dtype: str) -> str:
    """Returns the message of ``align="error"``."""
    return f'it begins where {dtype} elements must not; align="copy" copies it'


def unpacked_part(
    stored: _native.StoredTensor,
    index: Index,
    make: Callable[..., Any],
    error: type[Exception] = IndexError,
) -> Any:  # noqa: ANN401 - what `make` makes
    """Makes a part of a tensor of elements smaller than a byte, whole rows of which are read.

    Args:
        stored: The tensor.
        index: What of it.
        make: As `over`, or what makes another framework's tensor by it.
        error: As for `indexing.select`.
    """
    dtype, shape = stored.dtype, stored.shape
    indexing.select(shape, index, error)  # refuses what the steps below would not
    parts = indexing.parts(shape, index, error)
    bits = SUB_BYTE_BITS[dtype]
    last = max((place for place, part in enumerate(parts) if part is not None), default=-1)
    if last < 0 or shape[-1] * bits % 8:
        # Rows do not end at a byte boundary.
        whole = indexing.select((stored.nbytes,), ..., error)
        return make(dtype, shape, stored.nbytes, 0, None, reader(stored, whole, 1))[index]
    rows = indexing.select((*shape[:-1], shape[-1] * bits // 8), (*parts[:last], slice(None)), error)
    elements = make(dtype, (*rows.shape[:-1], shape[-1]), rows.count, 0, None, reader(stored, rows, 1))
    return elements[(..., *parts[last:])]


def reader(stored: _native.StoredTensor, part: indexing.Selection, item_bytes: int) -> Filler:
    """Returns the function that fills memory with a part of a tensor."""

    def read(memory: Any) -> None:  # noqa: ANN401
        strides = [stride * item_bytes for stride in part.strides]
        stored.read_selection(part.first * item_bytes, part.shape, strides, item_bytes, memory)

    return read

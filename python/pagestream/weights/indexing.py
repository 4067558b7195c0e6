"""NumPy's basic indexing as arithmetic: finds the elements that an index selects, without the tensor.

Ints, slices with any step, ``...`` and None have the same meaning as in NumPy
(https://numpy.org/doc/stable/user/basics.indexing.html#basic-indexing). Arrays, lists and bools, which NumPy
treats as advanced indices, are rejected. An empty list selects nothing, as in safetensors.
"""

from __future__ import annotations

import math
import operator
from functools import lru_cache
from types import EllipsisType
from typing import TYPE_CHECKING, Any, NamedTuple, SupportsIndex, TypeAlias

import numpy as np

from pagestream import errors

if TYPE_CHECKING:
    import numpy.typing as npt

# A part of an index, and an index.
Part: TypeAlias = SupportsIndex | slice | EllipsisType | None
Index: TypeAlias = Part | tuple[Part, ...] | list[Any]

_ALL = slice(None)


class ByteSelection(NamedTuple):
    """Elements of a contiguous tensor, in bytes.

    Attributes:
        first: The byte of the tensor at which the result's first element begins.
        shape: The result's shape, in elements.
        strides: The distance between neighbours along each axis of the result, in bytes.
        item_bytes: The size of an element.
    """

    first: int
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    item_bytes: int


class Selection(NamedTuple):
    """Elements of a contiguous tensor. All counts are in elements.

    Attributes:
        first: The position of the result's first element.
        shape: The result's shape.
        strides: The distance between neighbours along each axis of the result.
    """

    first: int
    shape: tuple[int, ...]
    strides: tuple[int, ...]

    @property
    def size(self) -> int:
        """The number of elements."""
        return math.prod(self.shape)

    def in_bytes(self, item_bytes: int) -> ByteSelection:
        """Returns the selection in the form that the native module expects."""
        strides = tuple([stride * item_bytes for stride in self.strides])
        return ByteSelection(self.first * item_bytes, self.shape, strides, item_bytes)


def select(shape: tuple[int, ...], index: Index, name: str = "tensor") -> Selection:
    """Returns the elements of a contiguous tensor that `index` selects.

    Args:
        shape: The tensor's shape.
        index: The index.
        name: The name of the tensor in messages.

    Returns:
        The selection, which is empty if the result is.

    Raises:
        SliceError: An int is out of range, there are too many parts, or a part is not basic indexing.

    Examples:
        >>> from pagestream.weights.indexing import select
        >>> select((4, 6), (slice(None), slice(None, None, -2)))
        Selection(first=5, shape=(4, 3), strides=(6, -2))
    """
    if type(index) in (int, slice) and shape and 0 not in shape:
        # Rows, which programs often request one by one.
        of_row, *inner = _contiguous_strides(shape)
        if isinstance(index, slice):
            start, length, step = _narrow(index, shape[0], 0)
            return Selection(start * of_row if length else 0, (length, *shape[1:]), (step * of_row, *inner))
        if isinstance(index, int) and -shape[0] <= index < shape[0]:
            return Selection(index % shape[0] * of_row, shape[1:], tuple(inner))
    selected = parts(shape, index, name)
    first, lengths, strides = 0, [], []
    dimension, stride = 0, math.prod(shape)
    for part in selected:
        if part is None:
            lengths.append(1)
            strides.append(0)
            continue
        size = shape[dimension]
        # A length of 0 makes all later strides 0: nothing is selected, whatever the strides are.
        stride = stride // size if size else 0
        if part is _ALL:
            lengths.append(size)
            strides.append(stride)
        elif isinstance(part, slice):
            start, length, step = _narrow(part, size, dimension)
            first += start * stride
            lengths.append(length)
            strides.append(step * stride)
        else:
            first += _place(part, dimension, selected, shape) * stride
        dimension += 1
    if 0 in lengths:
        first = 0
    return Selection(first, tuple(lengths), tuple(strides))


@lru_cache
def _contiguous_strides(shape: tuple[int, ...]) -> tuple[int, ...]:
    return tuple(math.prod(shape[dimension + 1 :]) for dimension in range(len(shape)))


def parts(shape: tuple[int, ...], index: Index, name: str = "tensor") -> list[Any]:
    """Returns the parts of an index: one per dimension, and None for each new dimension.

    The arguments are those of `select`.
    """
    if isinstance(index, list):
        if index:
            message = "Non empty lists are not implemented"
            raise errors.SliceError(message)
        index = slice(0, 0)
    given = index if isinstance(index, tuple) else (index,)
    ellipses = [position for position, part in enumerate(given) if part is ...]
    if len(ellipses) > 1:
        message = "Only one ellipsis (...) is allowed in slice index"
        raise errors.SliceError(message)
    used = len(given) - len(ellipses) - sum(part is None for part in given)
    if used > len(shape):
        message = (
            f"too many indices: {name} is {len(shape)}-dimensional, of shape {list(shape)}, "
            f"but {used} were given"
        )
        raise errors.SliceError(message)
    for position, part in enumerate(given):
        if type(part) is not slice and not _is_basic(part):
            message = (
                f"Unsupported slice index at position {position}: expected slice, int, ellipsis or None, "
                f"found {_described(part)}"
            )
            raise errors.SliceError(message)
    place = ellipses[0] if ellipses else len(given)
    return [*given[:place], *[_ALL] * (len(shape) - used), *given[place + 1 :]]


def is_advanced(index: Any) -> bool:  # noqa: ANN401
    """Returns whether an index contains lists, arrays or tensors, which are not basic indexing.

    An empty list by itself and single bools return False; they are rejected later.
    """
    if isinstance(index, list) and not index:
        return False
    given = index if isinstance(index, tuple) else (index,)
    arrays = [part for part in given if hasattr(part, "shape") and not isinstance(part, np.generic)]
    if any(not len(part.shape) and "bool" in str(part.dtype) for part in arrays):
        return False
    return bool(arrays) or any(isinstance(part, list) for part in given)


def _is_basic(part: Any) -> bool:  # noqa: ANN401
    if part is None or part is ... or isinstance(part, slice):
        return True
    if isinstance(part, np.generic):
        return isinstance(part, np.integer)
    # An object with a shape is an array, even with one element: for example, a torch bool of that kind would
    # pass for an int.
    return hasattr(part, "__index__") and not isinstance(part, bool) and not hasattr(part, "shape")


def _described(part: Any) -> str:  # noqa: ANN401
    if isinstance(part, bool | np.bool_):
        return f"the bool {part}, which NumPy takes for a mask"
    text = repr(part)
    return f"{text if len(text) < 50 else text[:46] + ' ...'}, of type {type(part).__name__}"  # noqa: PLR2004


def _narrow(part: slice, size: int, dimension: int) -> tuple[int, int, int]:
    """Returns the first element, the length and the step of a slice, clipped to the size as in NumPy."""
    try:
        start, stop, step = part.indices(size)
    except (TypeError, ValueError) as cause:
        message = f"{part} for dimension {dimension} of size {size}: {cause}"
        raise errors.SliceError(message) from cause
    return start, len(range(start, stop, step)), step


def _place(part: SupportsIndex, dimension: int, parts: list[Any], shape: tuple[int, ...]) -> int:
    index, size = operator.index(part), shape[dimension]
    if -size <= index < size:
        return index if index >= 0 else index + size
    if index < 0:
        message = f"Invalid index {index} for dimension {dimension} of size {size}"
        raise errors.SliceError(message)
    message = (
        f"Error during slicing [{', '.join(map(_text, parts))}] with shape {list(shape)}: "
        f"index {index} out of bounds for tensor dimension #{dimension} of size {size}"
    )
    raise errors.SliceError(message)


def _text(part: Any) -> str:  # noqa: ANN401
    """Returns a part of an index as source code."""
    if not isinstance(part, slice):
        return str(part)
    ends = ["" if end is None else str(end) for end in (part.start, part.stop)]
    return ":".join(ends if part.step in (None, 1) else [*ends, str(part.step)])


def of_tensor(error: errors.SafetensorError, path: str, name: str) -> errors.SafetensorError:
    """Returns an error that names the tensor and the file in which an index, or a type, is wrong."""
    kind = errors.SliceError if isinstance(error, errors.SliceError) else errors.SafetensorError
    return kind(f"{path}: tensor {name!r}: {error}")


def array_part(array: npt.NDArray[Any], index: Index) -> npt.NDArray[Any]:
    """Returns a part of an array as an array, even if it is a single element.

    Examples:
        >>> import numpy as np
        >>> from pagestream.weights.indexing import array_part
        >>> array_part(np.arange(6).reshape(2, 3), (-1, 0))
        array(3)
    """
    # NumPy returns a scalar for an index with all dimensions, but a view if an ellipsis follows.
    found: object = array[index]
    if isinstance(found, np.ndarray):
        return found
    whole: npt.NDArray[Any] = array[(*index, ...) if isinstance(index, tuple) else (index, ...)]
    return whole

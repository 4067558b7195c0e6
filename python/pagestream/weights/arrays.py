"""Creates tensors from the bytes of a safetensors file: `Framework`, and NumPy's arrays."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from pagestream import errors
from pagestream.weights import indexing
from pagestream.weights.dtypes import KNOWN, SUB_BYTE_BITS, itemsize, numpy_dtype, raw_shape, unpack

if TYPE_CHECKING:
    from collections.abc import Callable

    import numpy.typing as npt

    from pagestream import _native
    from pagestream._common.types import Buffer
    from pagestream.weights.indexing import Index

    # Fills a writable buffer.
    Filler = Callable[[Any], None]

# How to treat a tensor whose elements are misaligned in the file.
Align = Literal["copy", "view", "error"]


class Framework:
    """Creates tensors of a framework, whole or in part, from the bytes of a file.

    Attributes:
        align: How to treat elements that are misaligned in the file.
        copies: Whether tensors own their memory.
        read_only: Whether arrays over the mapping are read-only.
        raw: Whether a tensor is returned and indexed as its bytes.
        plain: The constructor and the types with which `WeightFile.array` creates this framework's tensors
            over the mapping, in one native call. None if it cannot.
    """

    plain: tuple[Callable[..., Any], dict[str, Any]] | None = None

    def __init__(
        self, align: Align = "copy", *, copies: bool = False, read_only: bool = False, raw: bool = False
    ) -> None:
        """Keeps the options."""
        self.align = align
        self.copies = copies
        self.read_only = read_only and not copies
        self.raw = raw

    def over(
        self, dtype: str, shape: tuple[int, ...], nbytes: int, offset: int, buffer: Buffer | None
    ) -> Any:  # noqa: ANN401 - the framework's type
        """Creates a tensor over a buffer as it is, or over new memory if the buffer is None.

        Takes the same arguments as `build`, and raises the same errors.
        """
        raise NotImplementedError

    def empty(self, dtype: str, shape: tuple[int, ...], nbytes: int) -> Any:  # noqa: ANN401
        """Creates an uninitialized tensor, with the same arguments and errors as `build`."""
        return self.over(dtype, shape, nbytes, 0, None)

    def reads_nothing(self) -> bool:
        """Returns whether new tensors have a type and a shape, but no bytes."""
        return False

    def is_aligned(self, tensor: Any) -> bool:  # noqa: ANN401
        """Returns whether the elements of a tensor have the alignment that the framework needs."""
        raise NotImplementedError

    def bytes_of(self, tensor: Any) -> npt.NDArray[np.uint8]:  # noqa: ANN401
        """Returns a view of a tensor's memory."""
        raise NotImplementedError

    def make(self, dtype: str, shape: tuple[int, ...], nbytes: int, *place: Any) -> Any:  # noqa: ANN401
        """Creates a tensor as `build` does, but without bytes if `reads_nothing`."""
        if self.reads_nothing():
            return self.empty(dtype, shape, nbytes)
        return self.build(dtype, shape, nbytes, *place)

    def build(
        self,
        dtype: str,
        shape: tuple[int, ...],
        nbytes: int,
        offset: int,
        buffer: _native.Exporter | None,
        fill: Filler,
    ) -> Any:  # noqa: ANN401
        """Creates a tensor over a buffer, or a copy.

        Args:
            dtype: The element type by its safetensors name.
            shape: The dimensions, in elements.
            nbytes: The size of the elements in the file.
            offset: The offset of the elements in the buffer, in bytes.
            buffer: Memory that contains the elements. None makes a copy.
            fill: Fills memory of `nbytes` with the elements, for a copy.

        Raises:
            SafetensorError: The framework has no such type or shape; or the elements are misaligned, and
                ``align="error"``.
        """
        if buffer is not None:
            tensor = self.over(dtype, shape, nbytes, offset, buffer)
            if self.align == "view" or self.is_aligned(tensor):
                return tensor
            if self.align == "error":
                message = f'it begins where {dtype} elements must not; align="copy" copies it'
                raise errors.SafetensorError(message)
        tensor = self.over(dtype, shape, nbytes, 0, None)
        if nbytes:
            fill(self.bytes_of(tensor))
        return tensor

    def described(self, dtype: str, shape: tuple[int, ...], nbytes: int) -> tuple[str, tuple[int, ...]]:
        """Returns the element type and shape that the user sees."""
        return ("U8", raw_shape(dtype, shape, nbytes)) if self.raw else (dtype, shape)

    def whole(self, file: _native.WeightFile, name: str) -> Any:  # noqa: ANN401
        """Creates a tensor of a file."""
        if self.plain is not None and not (self.raw or self.reads_nothing()):
            make, types = self.plain
            try:
                tensor = file.array(name, make, types, not self.read_only, self.copies)
                if tensor is not None:
                    return tensor
            except (RuntimeError, ValueError):
                pass  # the code below raises the error, with the path and the name
        facts = file.info(name)
        try:
            return self.whole_of(file, name, facts)
        except errors.SafetensorError as error:
            message = f"{file.path}: tensor {name!r} at byte {facts.offset}: {error}"
            raise errors.SafetensorError(message) from error

    def whole_of(self, file: _native.WeightFile, name: str, facts: _native.TensorFacts) -> Any:  # noqa: ANN401
        """Creates a tensor of a file. `facts` is its entry in the header."""
        dtype, shape = self.described(facts.dtype, facts.shape, facts.nbytes)
        if self.reads_nothing():
            return self.empty(dtype, shape, facts.nbytes)
        buffer, first = file.memory_of(name, not self.read_only, self.copies)
        # A mapping begins with the header, but other memory begins with the tensor.
        fill: Filler = partial(_copy, buffer) if first == 0 else partial(file.read_into, name)
        return self.build(dtype, shape, facts.nbytes, first, buffer, fill)

    def part(self, stored: _native.StoredTensor, index: Index) -> Any:  # noqa: ANN401
        """Creates the part of a tensor that `index` selects; see `PySafeSlice.__getitem__`."""
        dtype, shape = self.described(stored.dtype, stored.shape, stored.nbytes)
        if dtype in SUB_BYTE_BITS:
            return self.sub_byte_part(stored, index)
        return self.basic_part(stored, dtype, shape, index)

    def basic_part(
        self, stored: _native.StoredTensor, dtype: str, shape: tuple[int, ...], index: Index
    ) -> Any:  # noqa: ANN401
        """Creates a part of a tensor seen as `dtype` and `shape`. Contiguous mapped bytes are not copied."""
        item_bytes = itemsize(dtype)
        found = indexing.select(shape, index)
        nbytes = found.size * item_bytes
        if self.reads_nothing():
            return self.empty(dtype, found.shape, nbytes)
        buffer = None
        if nbytes:
            selected = found.in_bytes(item_bytes)
            buffer = stored.view(selected, not self.read_only, self.copies) or stored.copied(selected)
        return self.build(dtype, found.shape, nbytes, 0, buffer, reader(stored, found, item_bytes))

    def sub_byte_part(self, stored: _native.StoredTensor, index: Index) -> Any:  # noqa: ANN401
        """Creates a part of a tensor whose elements are smaller than a byte."""
        raise NotImplementedError


class NumpyArrays(Framework):
    """NumPy arrays."""

    plain: tuple[Callable[..., Any], dict[str, Any]] | None = (np.ndarray, KNOWN)

    def over(
        self,
        dtype: str,
        shape: tuple[int, ...],
        nbytes: int,  # noqa: ARG002 - NumPy computes it
        offset: int,
        buffer: Buffer | None,
    ) -> npt.NDArray[Any]:
        """Creates an array."""
        numpy_type = numpy_dtype(dtype)
        try:
            return np.ndarray(shape, numpy_type, buffer, offset)
        except (OverflowError, ValueError) as error:
            message = f"NumPy cannot make an array of {dtype} elements and shape {list(shape)}: {error}"
            raise errors.SafetensorError(message) from error

    def is_aligned(self, tensor: npt.NDArray[Any]) -> bool:
        """Returns whether the processor can read the elements in one go."""
        return tensor.flags.aligned

    def bytes_of(self, tensor: npt.NDArray[Any]) -> npt.NDArray[np.uint8]:
        """Returns a view as bytes, because NumPy does not export the types of ml_dtypes as buffers."""
        return tensor.reshape(-1).view(np.uint8)

    def build(self, dtype: str, shape: tuple[int, ...], nbytes: int, *place: Any) -> Any:  # noqa: ANN401
        """Creates an array. Elements smaller than a byte are unpacked, which copies them."""
        _, buffer, fill = place
        if dtype in SUB_BYTE_BITS:
            array = _unpacked(dtype, shape, nbytes, fill)
        else:
            array = super().build(dtype, shape, nbytes, *place)
        if self.read_only and buffer is not None and not buffer.is_copy:
            array.flags.writeable = False  # also for a copy of a misaligned tensor
        return array

    def sub_byte_part(self, stored: _native.StoredTensor, index: Index) -> Any:  # noqa: ANN401
        """Creates an array of whole rows, and indexes it."""
        dtype, shape = stored.dtype, stored.shape
        indexing.select(shape, index)  # rejects more than the steps below
        parts = indexing.parts(shape, index)
        bits = SUB_BYTE_BITS[dtype]
        last = max((place for place, part in enumerate(parts) if part is not None), default=-1)
        if last < 0 or shape[-1] * bits % 8:
            # Rows do not end at byte boundaries.
            whole = indexing.select((stored.nbytes,), ...)
            return _unpacked(dtype, shape, stored.nbytes, reader(stored, whole, 1))[index]
        rows = indexing.select((*shape[:-1], shape[-1] * bits // 8), (*parts[:last], slice(None)))
        elements = _unpacked(dtype, (*rows.shape[:-1], shape[-1]), rows.size, reader(stored, rows, 1))
        return elements[(..., *parts[last:])]


def _copy(buffer: Buffer, memory: Any) -> None:  # noqa: ANN401 - anything with the buffer protocol
    memory[...] = np.frombuffer(buffer, np.uint8)


def _unpacked(dtype: str, shape: tuple[int, ...], nbytes: int, fill: Filler) -> npt.NDArray[Any]:
    packed = np.empty(nbytes, np.uint8)
    if nbytes:
        fill(packed)
    return unpack(packed, dtype, shape)


def reader(stored: _native.StoredTensor, part: indexing.Selection, item_bytes: int) -> Filler:
    """Returns the function that fills memory with a part of a tensor."""

    def read(memory: Any) -> None:  # noqa: ANN401
        stored.read_selection(part.in_bytes(item_bytes), memory)

    return read

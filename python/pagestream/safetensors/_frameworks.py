"""What each of upstream's frameworks makes of the bytes of a file."""

from __future__ import annotations

from functools import partial
from importlib import import_module
from typing import TYPE_CHECKING, Any

import numpy as np

from pagestream.errors import FormatError, SafetensorError, SliceError
from pagestream.weights import arrays, indexing
from pagestream.weights.dtypes import SUB_BYTE_BITS, itemsize, raw_shape

if TYPE_CHECKING:
    from collections.abc import Callable

    import numpy.typing as npt

    from pagestream import _native
    from pagestream.weights.arrays import Align, Filler
    from pagestream.weights.indexing import Index

# Upstream's words. Not all of them are names of modules.
_WORDS = {
    "pt": "torch",
    "torch": "torch",
    "pytorch": "torch",
    "np": "numpy",
    "numpy": "numpy",
    "jax": "flax",
    "flax": "flax",
    "tf": "tensorflow",
    "tensorflow": "tensorflow",
    "mlx": "mlx",
    "paddle": "paddle",
}


def framework_named(word: str) -> str:
    """Returns the framework that one of upstream's words stands for.

    Raises:
        SafetensorError: It stands for none.
        TypeError: It is not a string.
    """
    if not isinstance(word, str):
        message = f"framework must be a word such as 'pt' or 'np', not {word!r}"  # type: ignore[unreachable]
        raise TypeError(message)
    if word in _WORDS:
        return _WORDS[word]
    message = f"framework {word} is invalid"
    raise SafetensorError(message)


class Framework:
    """Makes tensors of one framework, whole or in part, from the bytes of a file.

    Attributes:
        align: What to do with elements that are misaligned in the file.
        copies: Whether tensors get memory of their own.
        read_only: Whether arrays over the mapping are read-only.
        raw: Whether a tensor is given, and indexed, as its bytes.
    """

    def __init__(
        self, align: Align = "copy", *, copies: bool = False, read_only: bool = False, raw: bool = False
    ) -> None:
        """Keeps the options."""
        self.align = align
        self.copies = copies
        self.read_only = read_only
        self.raw = raw

    def make(
        self,
        dtype: str,
        shape: tuple[int, ...],
        nbytes: int,
        offset: int,
        buffer: Any,  # noqa: ANN401 - anything with the buffer protocol
        fill: Filler,
    ) -> Any:  # noqa: ANN401 - the framework's type
        """Makes a tensor over a buffer, or a copy.

        Args:
            dtype: The element type by its safetensors name.
            shape: The dimensions, in elements.
            nbytes: The size of the elements in the file.
            offset: Where the elements begin in the buffer, in bytes.
            buffer: Memory that holds the elements; None makes a copy.
            fill: Fills memory of `nbytes` with the elements, for a copy.

        Raises:
            SafetensorError: The framework has no such type or shape; or the elements are misaligned, and
                ``align="error"``.
        """
        raise NotImplementedError

    def described(self, dtype: str, shape: tuple[int, ...], nbytes: int) -> tuple[str, tuple[int, ...]]:
        """Returns the element type and shape that the user sees."""
        return ("U8", raw_shape(dtype, shape, nbytes)) if self.raw else (dtype, shape)

    def whole(self, file: _native.WeightFile, name: str) -> Any:  # noqa: ANN401
        """Makes one tensor of a file; raises KeyError for an unknown name."""
        info = file.info(name)
        nbytes = info.nbytes
        dtype, shape = self.described(info.dtype, info.shape, nbytes)
        buffer = None if self.copies else file.buffer(not self.read_only)
        try:
            return self.make(dtype, shape, nbytes, info.offset, buffer, partial(file.read_into, name))
        except SafetensorError as error:
            message = f"{file.path}: tensor {name!r} at byte {info.offset}: {error}"
            raise SafetensorError(message) from error

    def part(self, stored: _native.StoredTensor, index: Index) -> Any:  # noqa: ANN401
        """Makes the part of a tensor that `index` selects; see `PySafeSlice.__getitem__`."""
        dtype, shape = self.described(stored.dtype, stored.shape, stored.nbytes)
        if dtype in SUB_BYTE_BITS:
            return self.sub_byte_part(stored, index)
        return self.basic_part(stored, dtype, shape, index)

    def basic_part(
        self, stored: _native.StoredTensor, dtype: str, shape: tuple[int, ...], index: Index
    ) -> Any:  # noqa: ANN401
        """Makes a part of a tensor seen as `dtype` and `shape`. One run of mapped bytes is not copied."""
        item_bytes = itemsize(dtype)
        found = indexing.select(shape, index, SliceError)
        nbytes, fill = found.count * item_bytes, arrays.reader(stored, found, item_bytes)
        buffer = None
        if found.is_run and nbytes and not self.copies:
            buffer = stored.view(found.first * item_bytes, nbytes, not self.read_only)
        return self.make(dtype, found.shape, nbytes, 0, buffer, fill)

    def sub_byte_part(self, stored: _native.StoredTensor, index: Index) -> Any:  # noqa: ANN401
        """Makes a part of a tensor whose elements are smaller than a byte."""
        raise NotImplementedError


class NumpyArrays(Framework):
    """NumPy's arrays."""

    def make(
        self,
        dtype: str,
        shape: tuple[int, ...],
        nbytes: int,
        offset: int,
        buffer: Any,  # noqa: ANN401
        fill: Filler,
    ) -> Any:  # noqa: ANN401
        """Makes an array."""
        array = numpy_array(dtype, shape, nbytes, offset, buffer, fill, align=self.align)
        if self.read_only and buffer is not None:
            array.flags.writeable = False  # also of a copy that a misaligned tensor needs
        return array

    def sub_byte_part(self, stored: _native.StoredTensor, index: Index) -> Any:  # noqa: ANN401
        """Makes an array of whole rows, and indexes that."""
        return arrays.unpacked_part(stored, index, numpy_array, SliceError)


class ByNumpy(NumpyArrays):
    """Tensors of a framework that has NumPy's types at most, copied from an array."""

    def __init__(self, framework: str, device: Any, align: Align = "copy", **options: bool) -> None:  # noqa: ANN401
        """Finds the framework, on a device if it is paddle.

        Raises:
            SafetensorError: The device is not one of the framework.
            ModuleNotFoundError: The framework is not installed.
        """
        super().__init__(align, **options)
        self._convert = converter(framework, device)

    def make(self, dtype: str, *place: Any) -> Any:  # noqa: ANN401
        """Makes a tensor."""
        return self._convert(dtype, super().make(dtype, *place))

    def sub_byte_part(self, stored: _native.StoredTensor, index: Index) -> Any:  # noqa: ANN401
        """Makes a tensor of an array's part."""
        return self._convert(stored.dtype, super().sub_byte_part(stored, index))


def numpy_array(*place: Any, align: Align = "copy") -> npt.NDArray[Any]:  # noqa: ANN401
    """Calls `arrays.over`; its errors come out as `SafetensorError`."""
    try:
        return arrays.over(*place, align=align)
    except FormatError as error:
        raise SafetensorError(*error.args) from error


def check_cpu(framework: str, device: Any) -> None:  # noqa: ANN401 - a str, an int or a torch.device
    """Refuses a device other than the CPU.

    Raises:
        SafetensorError: The framework has no such device.
    """
    if device not in (None, "cpu"):
        message = f"arrays of {framework} are on the device 'cpu', not {device!r}"
        raise SafetensorError(message)


def converter(framework: str, device: Any = "cpu") -> Callable[[str, npt.NDArray[Any]], Any]:  # noqa: ANN401
    """Returns the function that copies a NumPy array into a tensor of a framework.

    The function takes the safetensors name of the element type, and the array.

    Raises:
        SafetensorError: The device is not one of the framework; only paddle has devices here.
        ModuleNotFoundError: The framework is not installed.
    """
    if framework != "paddle":
        check_cpu(framework, device)
    makers: dict[str, Callable[[], Callable[[str, npt.NDArray[Any]], Any]]] = {
        "flax": _flax,
        "tensorflow": _tensorflow,
        "mlx": _mlx,
        "paddle": partial(_paddle, device),
    }
    make = makers[framework]()

    def convert(dtype: str, array: npt.NDArray[Any]) -> Any:  # noqa: ANN401
        try:
            return make(dtype, array)
        # What they raise for types that they do not have has no common class.
        except (AttributeError, KeyError, RuntimeError, TypeError, ValueError) as error:
            message = f"{framework} cannot make a tensor of {dtype} elements and shape {array.shape}: {error}"
            raise SafetensorError(message) from error

    return convert


def _flax() -> Callable[[str, npt.NDArray[Any]], Any]:
    array = import_module("jax.numpy").array
    return lambda _, values: array(values)


def _tensorflow() -> Callable[[str, npt.NDArray[Any]], Any]:
    convert_to_tensor = import_module("tensorflow").convert_to_tensor
    return lambda _, values: convert_to_tensor(values)


def _mlx() -> Callable[[str, npt.NDArray[Any]], Any]:
    mx = import_module("mlx.core")

    def make(dtype: str, values: npt.NDArray[Any]) -> Any:  # noqa: ANN401
        if dtype == "BF16":  # unknown to mlx as a NumPy type
            return mx.array(values.view(np.uint16)).view(mx.bfloat16)
        return mx.array(values)

    return make


def _paddle(device: Any) -> Callable[[str, npt.NDArray[Any]], Any]:  # noqa: ANN401
    paddle = import_module("paddle")
    place = _paddle_place(device)
    # Bytes that it takes as another type of their size.
    detours = {"F8_E4M3": paddle.float8_e4m3fn, "F8_E5M2": paddle.float8_e5m2}

    def make(dtype: str, values: npt.NDArray[Any]) -> Any:  # noqa: ANN401
        if dtype == "U16":  # NumPy's uint16 means bfloat16 to paddle
            message = "it has no unsigned type of 16 bits"
            raise TypeError(message)
        if dtype == "BF16":
            return paddle.to_tensor(values.view(np.uint16), place=place)
        if dtype in detours:
            return paddle.to_tensor(values.view(np.uint8), place=place).view(detours[dtype])
        return paddle.to_tensor(values, place=place)

    return make


def _paddle_place(device: Any) -> str:  # noqa: ANN401
    """Returns a device in paddle's words; upstream's are torch's.

    Raises:
        SafetensorError: There is none.
    """
    word = f"cuda:{device}" if isinstance(device, int) else str("cpu" if device is None else device)
    kind, _, number = word.partition(":")
    kind = {"cuda": "gpu"}.get(kind, kind)
    if kind not in ("cpu", "gpu", "xpu") or not (number or "0").isdecimal() or (kind == "cpu" and number):
        message = f"device {device!r} is invalid for paddle: 'cpu', 'cuda', 'cuda:0', 'xpu:0' or a number"
        raise SafetensorError(message)
    return kind if kind == "cpu" else f"{kind}:{number or 0}"

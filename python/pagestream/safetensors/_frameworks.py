"""Creates tensors of the frameworks that upstream supports, from the bytes of a file."""

from __future__ import annotations

from functools import partial
from importlib import import_module
from typing import TYPE_CHECKING, Any

import numpy as np

from pagestream import _native
from pagestream.errors import SafetensorError
from pagestream.weights.arrays import NumpyArrays

if TYPE_CHECKING:
    from collections.abc import Callable

    import numpy.typing as npt

    from pagestream.weights.arrays import Align
    from pagestream.weights.indexing import Index

# Upstream's words for frameworks. Some are not names of modules.
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
    """Returns the framework for one of upstream's words, for example "torch" for "pt".

    Raises:
        SafetensorError: Upstream does not know the word.
        TypeError: The word is not a string.
    """
    if not isinstance(word, str):
        message = f"framework must be a word such as 'pt' or 'np', not {word!r}"  # type: ignore[unreachable]
        raise TypeError(message)
    if word in _WORDS:
        return _WORDS[word]
    message = f"framework {word} is invalid"
    raise SafetensorError(message)


class IndependentArrays(NumpyArrays):
    """NumPy arrays of one handle, for programs that expect copies, as upstream returns them.

    The first array of a tensor uses copy-on-write pages, and is writable. A second request returns a copy of
    the file's bytes. Overlapping parts of one tensor share memory, unless the whole tensor was requested.

    Attributes:
        given: The claims on those pages, by the tensor's name: False if only a part was handed out.
    """

    def __init__(self, align: Align = "copy", *, raw: bool = False) -> None:
        """Keeps the options."""
        super().__init__(align, raw=raw)
        self._copying = NumpyArrays(align, copies=True, raw=raw)
        self.given: dict[str, object] = {}

    def claim(self, name: str) -> bool:
        """Claims the pages of a tensor. Returns whether this is the first claim on it, from any thread."""
        first = object()
        return self.given.setdefault(name, first) is first

    def unclaim(self, name: str) -> None:
        """Withdraws the claim of an array that could not be created."""
        self.given.pop(name, None)

    def whole(self, file: _native.WeightFile, name: str) -> Any:  # noqa: ANN401
        """Creates a tensor of a file."""
        if not self.claim(name):
            return self._copying.whole(file, name)
        try:
            return super().whole(file, name)
        except ValueError:  # for example, an unknown name
            self.unclaim(name)
            raise

    def part(self, stored: _native.StoredTensor, index: Index) -> Any:  # noqa: ANN401
        """Creates the part of a tensor that `index` selects."""
        if self.given.get(stored.name):
            return self._copying.part(stored, index)
        array = super().part(stored, index)
        if not isinstance(array.base, _native.Exporter) or array.base.is_copy:
            return array
        claim = object() if array.nbytes == stored.nbytes else False
        before = self.given.setdefault(stored.name, claim)
        # A whole tensor is handed out once, and then no other part of it.
        return array if before is claim else self._copying.part(stored, index)


class ByNumpy(NumpyArrays):
    """Tensors of a framework that supports NumPy's types at most, copied from an array."""

    plain = None

    def __init__(self, framework: str, device: Any, align: Align = "copy", **options: bool) -> None:  # noqa: ANN401
        """Finds the framework, and for paddle the device.

        Raises:
            SafetensorError: The framework has no such device.
            ModuleNotFoundError: The framework is not installed.
        """
        super().__init__(align, **options)
        self._convert = converter(framework, device)

    def build(self, dtype: str, *place: Any) -> Any:  # noqa: ANN401
        """Creates a tensor."""
        return self._convert(dtype, super().build(dtype, *place))

    def sub_byte_part(self, stored: _native.StoredTensor, index: Index) -> Any:  # noqa: ANN401
        """Creates a tensor from a part of an array."""
        return self._convert(stored.dtype, super().sub_byte_part(stored, index))


def check_cpu(framework: str, device: Any) -> None:  # noqa: ANN401 - a str, an int or a torch.device
    """Rejects any device other than the CPU.

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
        SafetensorError: The framework has no such device. Only paddle has devices here.
        ModuleNotFoundError: The framework is not installed.
    """
    if framework != "paddle":
        check_cpu(framework, device)
    makers: dict[str, Callable[[], Callable[[str, npt.NDArray[Any]], Any]]] = {
        "flax": _jax,
        "tensorflow": partial(_by_function, "tensorflow", "convert_to_tensor"),
        "mlx": _mlx,
        "paddle": partial(_paddle, device),
    }
    make = makers[framework]()

    def convert(dtype: str, array: npt.NDArray[Any]) -> Any:  # noqa: ANN401
        try:
            return make(dtype, array)
        # Each framework raises its own kind of error for a missing type.
        except (AttributeError, KeyError, RuntimeError, TypeError, ValueError) as error:
            message = f"{framework} cannot make a tensor of {dtype} elements and shape {array.shape}: {error}"
            raise SafetensorError(message) from error

    return convert


def _by_function(module: str, name: str) -> Callable[[str, npt.NDArray[Any]], Any]:
    convert = getattr(import_module(module), name)
    return lambda _, values: convert(values)


def _jax() -> Callable[[str, npt.NDArray[Any]], Any]:
    jax, jnp = import_module("jax"), import_module("jax.numpy")
    # jax copies in its own threads, even after `array` has returned, and the file may change meanwhile.
    return lambda _, values: jax.block_until_ready(jnp.array(values))


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
    # Types that paddle accepts only as bytes.
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
    """Returns a device in paddle's words. Upstream uses torch's words.

    Raises:
        SafetensorError: Paddle has no such device.
    """
    word = f"cuda:{device}" if isinstance(device, int) else str("cpu" if device is None else device)
    kind, _, number = word.partition(":")
    kind = {"cuda": "gpu"}.get(kind, kind)
    if kind not in ("cpu", "gpu", "xpu") or not (number or "0").isdecimal() or (kind == "cpu" and number):
        message = f"device {device!r} is invalid for paddle: 'cpu', 'cuda', 'cuda:0', 'xpu:0' or a number"
        raise SafetensorError(message)
    return kind if kind == "cpu" else f"{kind}:{number or 0}"

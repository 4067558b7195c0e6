"""What each of upstream's frameworks makes of a NumPy array, and by which names they go."""

from __future__ import annotations

from functools import partial
from importlib import import_module
from typing import TYPE_CHECKING, Any

import numpy as np

from pagestream.errors import FormatError, SafetensorError
from pagestream.weights import arrays
from pagestream.weights.dtypes import numpy_dtype

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    import numpy.typing as npt

    from pagestream.weights.arrays import Align

    # A framework's tensor out of (element type, shape, bytes, where they begin in the buffer, buffer, a
    # function that fills memory of our own with them). There is no buffer where there is no mapping.
    Maker = Callable[
        [str, tuple[int, ...], int, int, Any, Callable[[Any], None]],
        Any,
    ]

# By upstream's words, which are not all of them modules' names.
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
    """The framework that one of upstream's words stands for.

    Raises:
        SafetensorError: It stands for none.
        TypeError: It is no word.
    """
    if not isinstance(word, str):
        message = f"framework must be a word such as 'pt' or 'np', not {word!r}"  # type: ignore[unreachable]
        raise TypeError(message)
    if word in _WORDS:
        return _WORDS[word]
    message = f"framework {word} is invalid"
    raise SafetensorError(message)


def maker(framework: str, device: Any, align: Align = "copy") -> Maker:  # noqa: ANN401
    """The function that makes tensors of a framework on a device, a str, an int or a torch.device.

    Raises:
        SafetensorError: The device is not one of the framework.
        ModuleNotFoundError: The framework is not installed.
    """
    if framework == "torch":
        from pagestream.safetensors.torch import _maker_on

        return _maker_on(device, align)
    if device not in (None, "cpu") and framework != "paddle":
        message = f"arrays of {framework} are on the device 'cpu', not {device!r}"
        raise SafetensorError(message)
    if framework == "numpy":
        return partial(numpy_array, align=align)
    convert = converter(framework, device)

    def make(dtype: str, *place: Any) -> Any:  # noqa: ANN401
        return convert(dtype, numpy_array(dtype, *place, align=align))

    return make


def numpy_array(*place: Any, align: Align = "copy") -> npt.NDArray[Any]:  # noqa: ANN401
    """`arrays.over`, whose errors come out as `SafetensorError`."""
    try:
        return arrays.over(*place, align=align)
    except FormatError as error:
        raise SafetensorError(*error.args) from error


def converter(framework: str, device: Any = "cpu") -> Callable[[str, npt.NDArray[Any]], Any]:  # noqa: ANN401
    """The function that copies a NumPy array into a tensor of a framework that has NumPy's types at most.

    It takes the safetensors name of the element type, and the array. Only paddle has devices here.

    Raises:
        ModuleNotFoundError: The framework is not installed.
    """
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
    """A device in paddle's words; upstream's are torch's.

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


def to_numpy(framework: str, tensors: Mapping[str, Any]) -> dict[str, npt.NDArray[Any]]:
    """Tensors of flax, tensorflow or mlx as arrays, not copied where the framework can do so."""
    if framework == "tensorflow":
        # A tensor of no dimensions comes as a scalar.
        return {name: np.asarray(tensor.numpy()) for name, tensor in tensors.items()}
    if framework == "mlx":
        bfloat16, uint16 = (getattr(import_module("mlx.core"), name) for name in ("bfloat16", "uint16"))
        return {
            name: np.asarray(tensor.view(uint16)).view(numpy_dtype("BF16"))
            if tensor.dtype == bfloat16
            else np.asarray(tensor)
            for name, tensor in tensors.items()
        }
    return {name: np.asarray(tensor) for name, tensor in tensors.items()}

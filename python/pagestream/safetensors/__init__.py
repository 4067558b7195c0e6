"""safetensors' names, on pagestream: ``import pagestream.safetensors as safetensors``.

Reading is ours: files open where mapping is refused, headers are checked strictly, arrays and tensors
are not copied. They can be written, as upstream's can: their pages are copied when they are written,
so that the file, and what others loaded from it, never changes. Writing files is upstream's own code, with
fences in front of its open defects.

`install` puts this package in the place of ``safetensors`` for code that is not yours.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from pagestream.errors import SafetensorError
from pagestream.safetensors import _upstream
from pagestream.safetensors._install import install, uninstall
from pagestream.safetensors._open import TensorMeta, _safe_open_handle, deserialize, safe_open
from pagestream.safetensors._slice import PySafeSlice

if TYPE_CHECKING:
    from collections.abc import Mapping

    from pagestream._common.types import StrPath

__all__ = [
    "PySafeSlice",
    "SafetensorError",
    "TensorMeta",
    "TensorSpec",
    "_safe_open_handle",
    "deserialize",
    "install",
    "safe_open",
    "serialize",
    "serialize_file",
    "uninstall",
]


class _Upstreams(type):
    """Makes upstream's objects: their class can be neither derived from nor changed."""

    def __call__(cls, **arguments: Any) -> Any:  # noqa: ANN401
        with _upstream.errors_as_ours():
            return _upstream.module().TensorSpec(**arguments)

    def __instancecheck__(cls, thing: object) -> bool:
        return isinstance(thing, _upstream.module().TensorSpec)


class TensorSpec(metaclass=_Upstreams):
    r"""Where one tensor lies in memory, for `serialize`. Upstream's class of that name.

    Args:
        dtype: The element type by its name in NumPy or torch, such as ``"float32"``.
        shape: The dimensions, in elements.
        data_ptr: The address of the first byte. The memory must outlive each `serialize` that gets this.
        data_len: The length in bytes.

    Raises:
        SafetensorError: An unknown element type.

    Example:
        >>> import numpy as np
        >>> from pagestream.safetensors import TensorSpec, deserialize, serialize
        >>> array = np.arange(3, dtype="u1")
        >>> spec = TensorSpec(dtype="uint8", shape=[3], data_ptr=array.ctypes.data, data_len=3)
        >>> deserialize(serialize({"a": spec}))[0][1]["data"]
        bytearray(b'\x00\x01\x02')
    """

    dtype: str
    shape: list[int]
    data_ptr: int
    data_len: int


def serialize(tensor_dict: Mapping[str, Any], metadata: dict[str, str] | None = None) -> bytes:
    r"""A safetensors file as bytes, from addresses. Upstream's function of that name.

    Args:
        tensor_dict: A `TensorSpec` for each name. The memory that they point to must outlive the call.
        metadata: What to put into ``__metadata__``.

    Raises:
        SafetensorError: What upstream refuses to write, and a tensor called ``__metadata__``.

    Example:
        >>> from pagestream.safetensors import serialize
        >>> serialize({})
        b'\x08\x00\x00\x00\x00\x00\x00\x00{}      '
    """
    _upstream.check_names(tensor_dict)
    with _upstream.errors_as_ours():
        return bytes(_upstream.module().serialize(tensor_dict, metadata))


def serialize_file(
    tensor_dict: Mapping[str, Any], filename: StrPath, metadata: dict[str, str] | None = None
) -> None:
    """`serialize` to a file.

    A new file's mode follows the umask, an old one's stays; a link is followed.

    Args:
        tensor_dict: As for `serialize`.
        filename: The file to write.
        metadata: As for `serialize`.

    Raises:
        SafetensorError: As `serialize`; or the file cannot be written.

    Example:
        >>> from pagestream.safetensors import safe_open, serialize_file
        >>> serialize_file({}, "empty.safetensors")
        >>> safe_open("empty.safetensors", "np").keys()
        []
    """
    _upstream.check_names(tensor_dict)
    _upstream.write(lambda path: _upstream.module().serialize_file(tensor_dict, path, metadata), filename)


def __getattr__(name: str) -> Any:  # noqa: ANN401 - a module's attributes are of any type
    # Late: reading needs nothing of upstream's.
    if name == "__version__":
        return _upstream.version()
    message = f"module {__name__!r} has no attribute {name!r}"
    raise AttributeError(message)

"""safetensors' names, on pagestream: ``import pagestream.safetensors as safetensors``.

Reading uses pagestream's own code: files open even if mapping is refused, headers are checked strictly, and
arrays and tensors are not copied. They are writable, like upstream's: the first write to a page copies it, so
neither the file nor another load of it changes. Saving uses upstream's code, guarded against its known
defects. It writes a temporary file, which then replaces the old one.

`install` puts this package in place of ``safetensors`` for third-party code.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from importlib import import_module
from typing import Any

from pagestream._common.public import names_of
from pagestream._common.types import StrPath
from pagestream.errors import SafetensorError
from pagestream.safetensors import _upstream
from pagestream.safetensors._install import install, uninstall
from pagestream.safetensors._load import deserialize
from pagestream.safetensors._open import TensorMeta, _safe_open_handle, safe_open
from pagestream.safetensors._slice import PySafeSlice

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

# Each module imports its framework, so it is imported on first use.
_MODULES = ("flax", "mlx", "numpy", "paddle", "tensorflow", "torch")


class TensorSpec:
    r"""The place of a tensor in memory, for `serialize`. It has the name of upstream's class.

    Args:
        dtype: The element type by its name in NumPy or torch, for example ``"float32"``.
        shape: The dimensions, in elements.
        data_ptr: The address of the first byte. The memory must outlive each `serialize` that uses it.
        data_len: The length in bytes.

    Raises:
        SafetensorError: The element type is unknown.

    Examples:
        >>> import numpy as np
        >>> from pagestream.safetensors import TensorSpec, deserialize, serialize
        >>> array = np.arange(3, dtype="u1")
        >>> spec = TensorSpec(dtype="uint8", shape=[3], data_ptr=array.ctypes.data, data_len=3)
        >>> deserialize(serialize({"a": spec}))[0][1]["data"]
        bytearray(b'\x00\x01\x02')
    """

    __slots__ = ("_upstreams",)

    def __init__(self, *, dtype: str, shape: Sequence[int], data_ptr: int, data_len: int) -> None:
        """Creates upstream's object, which checks the arguments."""
        with _upstream.errors_as_ours():
            self._upstreams = _upstream.module().TensorSpec(
                dtype=dtype, shape=list(shape), data_ptr=data_ptr, data_len=data_len
            )

    @property
    def dtype(self) -> str:
        """The element type."""
        return str(self._upstreams.dtype)

    @property
    def shape(self) -> list[int]:
        """The dimensions, in elements."""
        return list(self._upstreams.shape)

    @property
    def data_ptr(self) -> int:
        """The address of the first byte."""
        return int(self._upstreams.data_ptr)

    @property
    def data_len(self) -> int:
        """The length in bytes."""
        return int(self._upstreams.data_len)


def _specs(tensor_dict: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the specs in the form that upstream's writer expects."""
    _upstream.check_names(tensor_dict)
    return {
        name: spec._upstreams if isinstance(spec, TensorSpec) else spec  # noqa: SLF001 - of this module
        for name, spec in tensor_dict.items()
    }


def serialize(tensor_dict: Mapping[str, Any], metadata: dict[str, str] | None = None) -> bytes:
    r"""Returns a safetensors file as bytes, from addresses. It has the name of upstream's function.

    Args:
        tensor_dict: A `TensorSpec`, from this package or upstream, for each name. The memory must outlive the
            call.
        metadata: The contents of ``__metadata__``.

    Raises:
        SafetensorError: Upstream refuses to write this, or a tensor is named ``__metadata__``.

    Examples:
        >>> from pagestream.safetensors import serialize
        >>> serialize({})
        b'\x08\x00\x00\x00\x00\x00\x00\x00{}      '
    """
    specs = _specs(tensor_dict)
    with _upstream.errors_as_ours():
        return bytes(_upstream.module().serialize(specs, metadata))


def serialize_file(
    tensor_dict: Mapping[str, Any], filename: StrPath, metadata: dict[str, str] | None = None
) -> None:
    """Writes the result of `serialize` to a file.

    The finished file replaces an old one, so tensors loaded from the old file keep their values. It takes
    over the old file's mode, owner and extended attributes; without an old file, its mode follows the umask.
    A symbolic link stays, and its target is replaced. If a rename is impossible, for example over a mount
    point, the old file is overwritten, unless this process still has tensors of it: then an error is raised.

    Args:
        tensor_dict: As for `serialize`.
        filename: The file to write.
        metadata: As for `serialize`.

    Raises:
        SafetensorError: As for `serialize`; or the file cannot be written.

    Examples:
        >>> from pagestream.safetensors import safe_open, serialize_file
        >>> serialize_file({}, "empty.safetensors")
        >>> safe_open("empty.safetensors", "np").keys()
        []
    """
    specs = _specs(tensor_dict)
    _upstream.write(lambda path: _upstream.module().serialize_file(specs, path, metadata), filename)


def __getattr__(name: str) -> Any:  # noqa: ANN401 - a module's attributes are of any type
    # Imported late, because reading does not need upstream's code.
    if name == "__version__":
        return _upstream.version()
    if name in _MODULES:
        return import_module(f"{__name__}.{name}")
    message = f"module {__name__!r} has no attribute {name!r}"
    raise AttributeError(message)


def __dir__() -> list[str]:
    return names_of(globals(), [*__all__, *_MODULES])

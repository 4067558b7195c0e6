"""Loads all tensors at once, from a file or from memory, for every framework."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any

import numpy as np
import numpy.typing as npt

from pagestream import _native
from pagestream._common.public import set_module
from pagestream._common.types import StrPath
from pagestream.errors import SafetensorError
from pagestream.safetensors import _defaults
from pagestream.safetensors._open import framework_on, safe_open


def load_file(framework: str, filename: StrPath, device: Any = "cpu", **options: Any) -> dict[str, Any]:  # noqa: ANN401
    """Loads all tensors of a file, in its order. The options are the same as for `safe_open`."""
    with safe_open(filename, framework, device, **options) as file:
        return file.get_tensors()


def load(framework: str, data: Any, strict: bool | None, device: Any = "cpu") -> dict[str, Any]:  # noqa: ANN401, FBT001
    """Loads all tensors of a file in memory, as tensors with their own memory.

    Args:
        framework: A result of `framework_named`.
        data: The file: bytes, bytearray, memoryview, or anything else with the buffer protocol.
        strict: See `safe_open`.
        device: See `safe_open`.

    Raises:
        SafetensorError: Not a valid safetensors file, or a type or shape that the framework lacks.
    """
    make = framework_on(framework, device).make
    tensors = {}
    for name, tensor in deserialize(data, strict=strict):
        content, shape = tensor["data"], tuple(tensor["shape"])
        try:
            tensors[name] = make(tensor["dtype"], shape, len(content), 0, content, partial(_copy, content))
        except SafetensorError as error:
            message = f"tensor {name!r}: {error}"
            raise SafetensorError(message) from error
    return tensors


def _copy(content: bytearray, out: npt.NDArray[np.uint8]) -> None:
    out[:] = np.frombuffer(content, np.uint8)


@set_module("pagestream.safetensors")
def deserialize(
    bytes: Any,  # noqa: ANN401 - upstream's name; anything with the buffer protocol
    *,
    strict: bool | None = None,
) -> list[tuple[str, Mapping[str, Any]]]:
    """Returns the tensors of a safetensors file in memory, each with a copy of its bytes.

    Args:
        bytes: The file, as anything with the buffer protocol: bytes, bytearray, memoryview, an array.
        strict: As for `safe_open`.

    Returns:
        Pairs of a name and ``{"shape": list, "dtype": str, "data": bytearray}``, in the order of the data.

    Raises:
        SafetensorError: Not a valid safetensors file.
        TypeError: `bytes` has no buffer, or its buffer is not contiguous.

    Examples:
        >>> from pathlib import Path
        >>> from pagestream.safetensors import deserialize
        >>> deserialize(Path("model.safetensors").read_bytes())[1][0]
        'bias'
    """
    view = memoryview(bytes)
    view = view.cast("B") if view.nbytes else memoryview(b"")
    length = int.from_bytes(view[:_LENGTH_BYTES], "little")
    head = view[: _LENGTH_BYTES + min(length, _native.MAX_HEADER_BYTES)].tobytes()
    tensors = _native.parse_weights(head, len(view), _defaults.strictness(strict))

    def described(facts: _native.TensorFacts) -> dict[str, Any]:
        data = bytearray(view[facts.offset : facts.offset + facts.nbytes])
        return {"shape": list(facts.shape), "dtype": facts.dtype, "data": data}

    return [(name, described(facts)) for name, facts in tensors]


# The first bytes contain the header's length.
_LENGTH_BYTES = 8

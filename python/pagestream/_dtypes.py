"""Element types of safetensors as NumPy types.

Source: https://github.com/huggingface/safetensors, ``tensor.rs``, ``Dtype``.
"""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np

from pagestream.errors import FormatError

_NUMPY = {
    "BOOL": np.bool_,
    "U8": np.uint8,
    "I8": np.int8,
    "U16": np.uint16,
    "I16": np.int16,
    "U32": np.uint32,
    "I32": np.int32,
    "U64": np.uint64,
    "I64": np.int64,
    "F16": np.float16,
    "F32": np.float32,
    "F64": np.float64,
    "C64": np.complex64,
}

_ML_DTYPES = {
    "BF16": "bfloat16",
    "F8_E4M3": "float8_e4m3fn",
    "F8_E5M2": "float8_e5m2",
    "F8_E4M3FNUZ": "float8_e4m3fnuz",
    "F8_E5M2FNUZ": "float8_e5m2fnuz",
    "F8_E8M0": "float8_e8m0fnu",
}


@cache
def numpy_dtype(name: str) -> np.dtype[Any]:
    """The NumPy type of a safetensors element type.

    Args:
        name: As it stands in a header, such as ``"BF16"``.

    Raises:
        FormatError: NumPy has no such type, or only with ml_dtypes, which is not installed.
    """
    if name in _NUMPY:
        return np.dtype(_NUMPY[name])
    if name not in _ML_DTYPES:
        message = f"NumPy has no type for {name} elements, which are smaller than a byte; use PyTorch"
        raise FormatError(message)
    try:
        import ml_dtypes
    except ImportError as error:
        message = f"NumPy has a type for {name} only with ml_dtypes: pip install ml_dtypes"
        raise FormatError(message) from error
    found: np.dtype[Any] = np.dtype(getattr(ml_dtypes, _ML_DTYPES[name]))
    return found


def item_bytes(name: str) -> int:
    """Bytes of one element, for types whose elements are whole bytes; without a framework's type for them.

    Args:
        name: As it stands in a header, such as ``"BF16"``.
    """
    if name in _NUMPY:
        return np.dtype(_NUMPY[name]).itemsize
    return 2 if name == "BF16" else 1

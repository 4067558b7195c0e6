"""Element types of safetensors as NumPy types.

Source: https://github.com/huggingface/safetensors, ``tensor.rs``, ``Dtype``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from pagestream import _native, errors

if TYPE_CHECKING:
    import numpy.typing as npt

# The name of each element type in NumPy, or otherwise in ml_dtypes.
NAMES = {
    "BOOL": "bool",
    "U8": "uint8",
    "I8": "int8",
    "U16": "uint16",
    "I16": "int16",
    "U32": "uint32",
    "I32": "int32",
    "U64": "uint64",
    "I64": "int64",
    "F16": "float16",
    "F32": "float32",
    "F64": "float64",
    "C64": "complex64",
    "BF16": "bfloat16",
    "F8_E4M3": "float8_e4m3fn",
    "F8_E5M2": "float8_e5m2",
    "F8_E4M3FNUZ": "float8_e4m3fnuz",
    "F8_E5M2FNUZ": "float8_e5m2fnuz",
    "F8_E8M0": "float8_e8m0fnu",
    "F4": "float4_e2m1fn",
    "F6_E2M3": "float6_e2m3fn",
    "F6_E3M2": "float6_e3m2fn",
}

# NumPy types by element type. The types of ml_dtypes are added on first use.
KNOWN: dict[str, np.dtype[Any]] = {
    element: np.dtype(name) for element, name in NAMES.items() if name in np.sctypeDict
}

# Bits of the types smaller than a byte. They are packed in a file, and take one byte each in an array.
SUB_BYTE_BITS = {name: bits for name, bits in _native.DTYPE_BITS.items() if bits % 8}


def numpy_dtype(name: str) -> np.dtype[Any]:
    """Returns the NumPy type of a safetensors element type.

    Args:
        name: The name in a header, for example ``"BF16"``.

    Raises:
        SafetensorError: NumPy supports this type only with ml_dtypes, which is missing or too old.
    """
    if name in KNOWN:
        return KNOWN[name]
    try:
        import ml_dtypes

        found: np.dtype[Any] = np.dtype(getattr(ml_dtypes, NAMES[name]))
    except (ImportError, AttributeError) as error:
        message = (
            f"NumPy has a type for {name} only with ml_dtypes (0.5 or newer): pip install ml_dtypes; "
            "or use safe_open or open_checkpoint with raw=True for the bytes"
        )
        raise errors.SafetensorError(message) from error
    KNOWN[name] = found
    return found


def raw_shape(dtype: str, shape: tuple[int, ...], nbytes: int) -> tuple[int, ...]:
    """Returns the shape of a tensor's bytes: its last dimension counts bytes.

    Args:
        dtype: The element type by its safetensors name.
        shape: The tensor's shape, in elements.
        nbytes: Its size in bytes.

    Returns:
        The shape of ``array.view(np.uint8)``, or a flat shape if the last dimension does not fill bytes
        (elements of 4 and 6 bits).
    """
    last_bits = (shape[-1] if shape else 1) * _native.DTYPE_BITS[dtype]
    return (nbytes,) if last_bits % 8 else (*shape[:-1], last_bits // 8)


def itemsize(dtype: str) -> int:
    """Returns the size of an element in a file in bytes, or 1 for elements that share a byte."""
    return max(1, _native.DTYPE_BITS[dtype] // 8)


def unpack(packed: npt.NDArray[np.uint8], dtype: str, shape: tuple[int, ...]) -> npt.NDArray[Any]:
    """Unpacks elements of 4 and 6 bits to one byte each, as the types of ml_dtypes require.

    The first element has the lowest bits, as in PyTorch's ``float4_e2m1fn_x2``. The format itself does not
    specify the order.

    Args:
        packed: The tensor's bytes.
        dtype: ``"F4"``, ``"F6_E2M3"`` or ``"F6_E3M2"``.
        shape: The tensor's shape, in elements.
    """
    numpy_type = numpy_dtype(dtype)
    if SUB_BYTE_BITS[dtype] == 4:  # noqa: PLR2004 - bits
        elements = np.empty((packed.size, 2), np.uint8)
        elements[:, 0], elements[:, 1] = packed & 0xF, packed >> 4
    else:
        low, middle, high = packed.reshape(-1, 3).T
        elements = np.empty((packed.size // 3, 4), np.uint8)
        elements[:, 0] = low & 0x3F
        elements[:, 1] = low >> 6 | (middle & 0xF) << 2
        elements[:, 2] = middle >> 4 | (high & 0x3) << 4
        elements[:, 3] = high >> 2
    return elements.reshape(-1).view(numpy_type).reshape(shape)

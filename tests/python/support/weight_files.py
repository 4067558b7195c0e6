"""safetensors files built byte by byte, and their possible element types."""

from __future__ import annotations

import json
import os

import ml_dtypes
import numpy as np

# safetensors' name, torch's name, NumPy's type
ELEMENT_TYPES = [
    ("BOOL", "bool", np.bool_),
    ("U8", "uint8", np.uint8),
    ("I8", "int8", np.int8),
    ("U16", "uint16", np.uint16),
    ("I16", "int16", np.int16),
    ("U32", "uint32", np.uint32),
    ("I32", "int32", np.int32),
    ("U64", "uint64", np.uint64),
    ("I64", "int64", np.int64),
    ("F16", "float16", np.float16),
    ("BF16", "bfloat16", ml_dtypes.bfloat16),
    ("F32", "float32", np.float32),
    ("F64", "float64", np.float64),
    ("C64", "complex64", np.complex64),
    ("F8_E4M3", "float8_e4m3fn", ml_dtypes.float8_e4m3fn),
    ("F8_E5M2", "float8_e5m2", ml_dtypes.float8_e5m2),
    ("F8_E4M3FNUZ", "float8_e4m3fnuz", ml_dtypes.float8_e4m3fnuz),
    ("F8_E5M2FNUZ", "float8_e5m2fnuz", ml_dtypes.float8_e5m2fnuz),
    ("F8_E8M0", "float8_e8m0fnu", ml_dtypes.float8_e8m0fnu),
]


def entry(dtype, shape, begin, end):
    return {"dtype": dtype, "shape": list(shape), "data_offsets": [begin, end]}


def weight_file(header, data=b""):
    """Returns a file with this header (a dict, text or bytes) and this data (bytes, or a number of zeros)."""
    if isinstance(header, dict):
        header = json.dumps(header, separators=(",", ":"))
    if isinstance(header, str):
        header = header.encode()
    data = bytes(data) if isinstance(data, int) else data
    return len(header).to_bytes(8, "little") + header + data


def write(path, content):
    """Writes a file and returns the path as a str."""
    with open(path, "wb") as file:
        file.write(content)
    return str(path)


FLOATS = np.arange(5, dtype="<f4")


def odd_file(path, remainder=1):
    """Returns a file with the byte 7 and then `FLOATS`. Its header length modulo 8 is `remainder`."""
    header = json.dumps({"byte": entry("U8", [1], 0, 1), "floats": entry("F32", [5], 1, 21)})
    header += " " * ((remainder - len(header)) % 8)
    return write(path, weight_file(header, b"\x07" + FLOATS.tobytes()))


def changed_in_place(path, change):
    """Changes a file until its change time differs, because the file system's clock may be coarse."""
    before = os.stat(path).st_ctime_ns
    while os.stat(path).st_ctime_ns == before:
        change()

"""safetensors files and PyTorch, by upstream's names. Importing this imports torch."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from pagestream.errors import SafetensorError
from pagestream.safetensors._open import Backend, safe_open
from pagestream.safetensors._upstream import writer

if TYPE_CHECKING:
    from collections.abc import Callable

    from pagestream._environment import Mode
    from pagestream.mapping import StrPath

__all__ = ["load_file", "save", "save_file"]

# Types that this torch does not have are left out, and refused when a file holds them.
_DTYPES = {
    code: getattr(torch, name)
    for code, name in {
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
        "BF16": "bfloat16",
        "F32": "float32",
        "F64": "float64",
        "C64": "complex64",
        "F8_E4M3": "float8_e4m3fn",
        "F8_E5M2": "float8_e5m2",
        "F8_E4M3FNUZ": "float8_e4m3fnuz",
        "F8_E5M2FNUZ": "float8_e5m2fnuz",
        "F8_E8M0": "float8_e8m0fnu",
        "F4": "float4_e2m1fn_x2",
    }.items()
    if hasattr(torch, name)
}


def load_file(
    filename: StrPath,
    device: str | int | torch.device = "cpu",
    *,
    backend: Backend | None = None,
    mmap_mode: Mode | None = None,
    strict: bool = True,
    copy: bool = False,
) -> dict[str, torch.Tensor]:
    """All tensors of a file as a dict of tensors, in the order of the file.

    On the CPU nothing is read until it is used, unless ``copy=True`` or the file cannot be mapped.

    Args:
        filename: The file.
        device: Where the tensors go.
        backend: See `safe_open`.
        mmap_mode: See `safe_open`.
        strict: See `safe_open`.
        copy: See `safe_open`.

    Raises:
        OSError: The file cannot be opened; with ``errno`` and ``filename``.
        SafetensorError: Not a valid safetensors file, or an element type that torch does not have.

    Example:
        >>> from pagestream.safetensors.torch import load_file
        >>> load_file("model.safetensors")["bias"]
        tensor([0., 0., 0.])
    """
    options = {"backend": backend, "mmap_mode": mmap_mode, "strict": strict, "copy": copy}
    with safe_open(filename, "pt", device, **options) as file:  # type: ignore[arg-type]
        return {name: file.get_tensor(name) for name in file.offset_keys()}


save = writer("safetensors.torch", "save")
save_file = writer("safetensors.torch", "save_file")


def _tensor(
    dtype_name: str,
    shape: tuple[int, ...],
    nbytes: int,
    buffer: Any,  # noqa: ANN401 - anything with the buffer protocol
    read_into: Callable[[Any], None],
    device: torch.device,
) -> torch.Tensor:
    """A tensor over `buffer`, which is writable; a copy if there is none, or if it is misaligned."""
    dtype = _DTYPES.get(dtype_name)
    if dtype is None:
        message = f"torch {torch.__version__} has no type for {dtype_name} elements"
        raise SafetensorError(message)
    if dtype_name == "F4":
        if not shape or shape[-1] % 2:
            message = f"torch counts F4 elements in pairs; the last dimension of {list(shape)} is odd"
            raise SafetensorError(message)
        # Two elements a byte, of which torch counts the pairs.
        shape = (*shape[:-1], shape[-1] // 2)
    if not nbytes:
        return torch.empty(shape, dtype=dtype, device=device)
    if buffer is not None:
        flat = torch.frombuffer(buffer, dtype=dtype)
    if buffer is None or flat.data_ptr() % dtype.itemsize:
        raw = torch.empty(nbytes, dtype=torch.uint8)
        read_into(raw.numpy())
        flat = raw.view(dtype)
    tensor = flat.view(shape)
    return tensor if device.type == "cpu" else tensor.to(device)


def _device(device: str | int | torch.device) -> torch.device:
    """The device, checked when the file is opened and not at the first tensor."""
    try:
        return torch.device(device)
    except (RuntimeError, TypeError, ValueError) as error:
        message = f"device {device!r} is invalid: {error}"
        raise SafetensorError(message) from error

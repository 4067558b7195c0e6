"""torch's original constructors, even if a program has replaced them.

Programs that build models temporarily replace functions of the module `torch`. For example, inside
`deepspeed.zero.Init`, `torch.empty` returns bfloat16 for float32. Inside `init_empty_weights` of older
releases of accelerate, it returns tensors on ``meta``. A module imported meanwhile would keep the
replacement. These functions therefore come from `torch._C`, as torch's own do.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import torch
from torch._C import (
    _get_dispatch_mode,
    _len_torch_dispatch_stack,
    _TorchDispatchModeKey,
    _VariableFunctions,
)
from torch._ops import _get_dispatch_mode_pre_dispatch
from torch.utils._python_dispatch import _get_current_dispatch_mode_stack

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pagestream._common.types import Buffer

CPU = torch.device("cpu")

as_tensor = _VariableFunctions.as_tensor
from_numpy = _VariableFunctions.from_numpy


class Stored(NamedTuple):
    """How NumPy stores elements of a torch type.

    Attributes:
        dtype: torch's type.
        held: NumPy's type of the same size.
        is_viewed: Whether NumPy lacks the type, and stores integers instead.
    """

    dtype: torch.dtype
    held: np.dtype[Any]
    is_viewed: bool


# NumPy types that torch accepts unchanged.
_TAKEN = {
    getattr(torch, name): np.dtype(name)
    for name in (
        *("bool", "uint8", "int8", "int16", "int32", "int64"),
        *("float16", "float32", "float64", "complex64", "complex128"),
    )
}
# NumPy 1 limits arrays to 32 dimensions, and torch has no limit.
_MAX_DIMENSIONS = 32


def stored(dtype: torch.dtype) -> Stored:
    """Returns how NumPy stores elements of a torch type."""
    taken = _TAKEN.get(dtype)
    return Stored(dtype, taken or np.dtype(f"i{dtype.itemsize}"), taken is None)


def over_memory(
    buffer: Buffer, kind: Stored, shape: tuple[int, ...], count: int, offset: int
) -> torch.Tensor:
    """Returns a CPU tensor over writable memory, with `count` elements that begin at byte `offset`.

    Raises:
        RuntimeError: torch cannot create it, or a mode of the program has changed it.
    """
    if len(shape) > _MAX_DIMENSIONS:
        return as_asked(over_array((count,), kind, buffer, offset).view(shape), kind.dtype, CPU)
    return over_array(shape, kind, buffer, offset)


def over_array(shape: tuple[int, ...], kind: Stored, buffer: Buffer, offset: int) -> torch.Tensor:
    """Returns a tensor over memory, created through an array.

    This takes a third of the time of `torch.frombuffer` and a view of its result.

    Raises:
        RuntimeError: torch cannot create it, or a mode of the program has changed it.
        ValueError: NumPy cannot create the array.
    """
    dtype, held, is_viewed = kind
    tensor = from_numpy(np.ndarray(shape, held, buffer, offset))
    if is_viewed:
        tensor = tensor.view(dtype)
    return tensor if tensor.dtype is dtype and tensor.is_cpu else as_asked(tensor, dtype, CPU)


def empty(
    shape: Sequence[int], dtype: torch.dtype, device: torch.device, *, pin_memory: bool = False
) -> torch.Tensor:
    """Returns an uninitialized tensor.

    Raises:
        RuntimeError: torch cannot create it, or a mode of the program has changed it.
    """
    tensor = _VariableFunctions.empty(shape, dtype=dtype, device=device, pin_memory=pin_memory)
    return as_asked(tensor, dtype, device)


def as_asked(tensor: torch.Tensor, dtype: torch.dtype, device: torch.device) -> torch.Tensor:
    """Returns the tensor, after a check of its type and device.

    Raises:
        RuntimeError: A mode of the program has changed it.
    """
    # The requested device may lack the tensor's device number, and comparing the types takes a microsecond.
    if tensor.dtype is dtype and ((device is CPU and tensor.is_cpu) or tensor.device.type == device.type):
        return tensor
    message = (
        f"torch returned {tensor.dtype} on {tensor.device}, not {dtype} on {device}: a TorchFunctionMode or "
        "TorchDispatchMode of the program changes tensors; load outside of it"
    )
    raise RuntimeError(message)


def makes_fakes() -> bool:
    """Returns whether this thread is under a `FakeTensorMode`, whose tensors have only types and shapes.

    Raises:
        RuntimeError: `torch.export` or `make_fx` traces this thread. The traced program would create an empty
            tensor in place of each loaded one, and compute with uninitialized memory.
    """
    if not _len_torch_dispatch_stack():
        return False
    from torch._subclasses.fake_tensor import FakeTensorMode

    if not any(isinstance(mode, FakeTensorMode) for mode in _get_current_dispatch_mode_stack()):
        return False
    proxy = _TorchDispatchModeKey.PROXY
    if _get_dispatch_mode(proxy) or _get_dispatch_mode_pre_dispatch(proxy):  # type: ignore[no-untyped-call]
        message = (
            "tensors cannot be loaded while torch.export or make_fx traces a program: load them before, and "
            "keep them as parameters or buffers of the module"
        )
        raise RuntimeError(message)
    return True


def is_fake(tensor: torch.Tensor) -> bool:
    """Returns whether a tensor belongs to a `FakeTensorMode`."""
    from torch._subclasses.fake_tensor import FakeTensor

    return isinstance(tensor, FakeTensor)

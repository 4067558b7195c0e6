"""torch's constructors themselves, whatever a program has put in their places.

Programs that build models replace functions of the module `torch` for a while. Inside `deepspeed.zero.Init`
`torch.empty` returns bfloat16 for float32. Inside `init_empty_weights` of older releases of accelerate it
returns tensors on ``meta``. A module that is imported meanwhile would keep the replacement. So these
functions are taken from `torch._C`, as torch itself does.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch._C import _len_torch_dispatch_stack, _VariableFunctions
from torch.utils._python_dispatch import _get_current_dispatch_mode_stack

if TYPE_CHECKING:
    from collections.abc import Sequence

CPU = torch.device("cpu")

as_tensor = _VariableFunctions.as_tensor
frombuffer = _VariableFunctions.frombuffer
from_numpy = _VariableFunctions.from_numpy


def empty(
    shape: Sequence[int], dtype: torch.dtype, device: torch.device, *, pin_memory: bool = False
) -> torch.Tensor:
    """Returns a tensor as yet without content.

    Raises:
        RuntimeError: torch cannot make it, or a mode of the program has changed it.
    """
    tensor = _VariableFunctions.empty(shape, dtype=dtype, device=device, pin_memory=pin_memory)
    return checked(tensor, dtype, device)


def checked(tensor: torch.Tensor, dtype: torch.dtype, device: torch.device) -> torch.Tensor:
    """Returns a tensor that has this type, and is on this device.

    Raises:
        RuntimeError: A mode of the program has changed it.
    """
    # `torch.device.type` takes a microsecond. A device may lack the number that the tensor has.
    if tensor.dtype is dtype and (tensor.device == device or tensor.device.type == device.type):
        return tensor
    message = (
        f"torch returned {tensor.dtype} on {tensor.device}, not {dtype} on {device}: a TorchFunctionMode or "
        "TorchDispatchMode of the program changes tensors; load outside of it"
    )
    raise RuntimeError(message)


def makes_fakes() -> bool:
    """Returns whether this thread is under a `FakeTensorMode`, whose tensors have types and shapes alone."""
    if not _len_torch_dispatch_stack():
        return False
    from torch._subclasses.fake_tensor import FakeTensorMode

    return any(isinstance(mode, FakeTensorMode) for mode in _get_current_dispatch_mode_stack())


def is_fake(tensor: torch.Tensor) -> bool:
    """Returns whether a tensor is one of a `FakeTensorMode`."""
    from torch._subclasses.fake_tensor import FakeTensor

    return isinstance(tensor, FakeTensor)

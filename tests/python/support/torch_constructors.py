"""Contexts that replace torch's constructors, as libraries do while they build models."""

import contextlib

import torch
from torch.overrides import TorchFunctionMode
from torch.utils._device import DeviceContext

# `deepspeed.zero.Init` wraps these constructors.
WRAPPED = ("tensor", "empty", "zeros", "ones", "full", "arange", "eye", "randn")
ORIGINALS = {name: getattr(torch, name) for name in WRAPPED}


@contextlib.contextmanager
def replaced(wrap, new_tensor=None):
    """Wraps each constructor, and replaces `torch.Tensor.__new__` by `new_tensor`."""
    with contextlib.ExitStack() as ends:
        if new_tensor is not None:
            ends.callback(setattr, torch.Tensor, "__new__", torch.Tensor.__new__)
            torch.Tensor.__new__ = new_tensor
        for name, function in ORIGINALS.items():
            ends.callback(setattr, torch, name, function)
            setattr(torch, name, wrap(function))
        yield


def deepspeed_zero_init(dtype=torch.bfloat16, device="cpu"):
    """Replaces the same functions as `deepspeed.zero.Init` (0.19: runtime/zero/partition_parameters.py)."""

    def zero_wrapper_for_fp_tensor_constructor(function):
        def wrapped(*args, **kwargs):
            if kwargs.get("device") is None:
                kwargs["device"] = torch.device(device)
            tensor = function(*args, **kwargs)
            if tensor.is_floating_point():
                tensor.data = tensor.data.to(dtype)
            return tensor

        return wrapped

    def new_tensor(_, *args, **kwargs):
        tensor = ORIGINALS["empty"](0, device=device).new_empty(*(args or (0,)), **kwargs)
        return tensor.to(dtype) if tensor.is_floating_point() else tensor

    return replaced(zero_wrapper_for_fp_tensor_constructor, new_tensor)


def deepspeed_on_device():
    """Replaces the same functions as `deepspeed.OnDevice(dtype=torch.float16)`."""
    return deepspeed_zero_init(torch.float16, "meta")


def accelerate_init_empty_weights():
    """Replaces the same functions as older accelerate releases do with `include_buffers=True`."""

    def patch_tensor_constructor(function):
        return lambda *args, **kwargs: function(*args, **{**kwargs, "device": torch.device("meta")})

    return replaced(patch_tensor_constructor)


@contextlib.contextmanager
def default_device():
    torch.set_default_device("meta")
    try:
        yield
    finally:
        torch.set_default_device(None)


@contextlib.contextmanager
def default_dtype():
    before = torch.get_default_dtype()
    torch.set_default_dtype(torch.bfloat16)
    try:
        yield
    finally:
        torch.set_default_dtype(before)


class Changes(TorchFunctionMode):
    """Makes one of torch's functions return float64 tensors."""

    def __init__(self, name):
        super().__init__()
        self.name = name

    def __torch_function__(self, function, types, args=(), kwargs=None):
        found = function(*args, **(kwargs or {}))
        return found.double() if function.__name__ == self.name else found


PLACES = {
    "deepspeed.zero.Init": deepspeed_zero_init,
    "deepspeed.OnDevice": deepspeed_on_device,
    "accelerate.init_empty_weights": accelerate_init_empty_weights,
    "torch.set_default_device": default_device,
    "torch.set_default_dtype": default_dtype,
    "torch.device": lambda: torch.device("meta"),
    "DeviceContext": lambda: DeviceContext(torch.device("meta")),
}

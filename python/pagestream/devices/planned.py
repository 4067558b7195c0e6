"""Plans for torch: the requested tensors, their types, and their creation from bytes."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import torch

from pagestream._common.dtype_names import AnyDtype, dtype_name
from pagestream.devices.torch_tensors import TorchTensors, dtype_named, shape_in_torch
from pagestream.errors import SafetensorError
from pagestream.weights import indexing, streaming
from pagestream.weights.checkpoint import Checkpoint
from pagestream.weights.dtypes import SUB_BYTE_BITS
from pagestream.weights.indexing import Index
from pagestream.weights.plan import Plan
from pagestream.weights.streaming import StreamOrder, Wanted
from pagestream.weights.tensor_info import TensorInfo

# Returns the requested type of a tensor; None for its own.
CastOf = Callable[[Wanted], torch.dtype | None]

# Types that `dtype` casts. Numbers of 8 bits and less have a meaning only together with their scales.
_CAST = frozenset({"F16", "BF16", "F32", "F64"})


def planned(weights: Checkpoint, plan: Plan, order: StreamOrder) -> list[Wanted]:
    """Returns the tensors of a plan. All of them have types and shapes that torch supports.

    Raises:
        SafetensorError: torch lacks a type or shape.
        KeyError: As for `streaming.planned`, like its other errors.
    """
    found = streaming.planned(list(weights), weights.info, plan, order, TorchTensors())
    return [_in_torch(each) for each in found]


def planned_part(info: TensorInfo, part: Index | None) -> Wanted:
    """Returns a plan entry for a part of a tensor, or all of it for None, with a type and shape of torch.

    Raises:
        SafetensorError: torch lacks the type or shape; or the part is out of range.
    """
    return _in_torch(streaming.planned_part(info, part, TorchTensors()))


def _in_torch(each: Wanted) -> Wanted:
    info = each.info
    try:
        dtype_named(info.dtype)
        shape = shape_in_torch(each.dtype, each.shape)
    except SafetensorError as error:
        message = f"{info.path}: tensor {info.name!r} at byte {info.offset}: {error}"
        raise SafetensorError(message) from error
    if each.index is ... or info.dtype not in SUB_BYTE_BITS:
        return each
    # A part of pairs, which are bytes.
    part = indexing.select(shape, each.index, name=repr(info.name))
    return replace(each, dtype="U8", shape=shape, part=part)


def shape_of(each: Wanted) -> tuple[int, ...]:
    """Returns the shape of the torch tensor."""
    return shape_in_torch(each.dtype, each.shape) if each.part is None else each.part.shape


def cast_to(dtype: AnyDtype | None) -> CastOf:
    """Returns the function that names the type of each tensor if the user requests `dtype`.

    Raises:
        TypeError: `dtype` is neither a torch type nor the name of one.
        ValueError: `dtype` is not a floating-point type.
    """
    if dtype is None:
        return lambda _: None
    # torch's names come first: "float" is torch.float32, but NumPy's float64.
    names = [dtype, dtype_name(dtype)]
    kinds = [getattr(torch, name, None) if isinstance(name, str) else name for name in names]
    kind = next((kind for kind in kinds if isinstance(kind, torch.dtype)), None)
    if kind is None:
        message = (
            f'dtype must be a type of torch or NumPy, or the name of one, such as "bfloat16", not {dtype!r}'
        )
        raise TypeError(message)
    if not kind.is_floating_point:
        message = f"dtype must be a floating-point type, not {kind}: only such tensors are cast"
        raise ValueError(message)
    return lambda each: kind if each.info.dtype in _CAST else None


def finished(each: Wanted, tensor: torch.Tensor, cast_of: CastOf) -> torch.Tensor:
    """Returns a tensor with the requested type."""
    kind = dtype_named(each.info.dtype)
    tensor = tensor if tensor.dtype == kind else tensor.view(kind)
    cast = cast_of(each)
    return tensor if cast is None else tensor.to(cast)

"""Opening and reading the weights: pagestream compared with `safetensors`, on the same file."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import safetensors
import safetensors.torch
import torch

import pagestream
import pagestream.safetensors.torch
from files import DemoError
from measure import Row, alternate

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from pathlib import Path

    import numpy.typing as npt
    from torch import Tensor

Arrays = dict[str, "npt.NDArray[Any]"]


def pagestream_numpy(path: Path) -> Arrays:
    """Returns every tensor as a read-only view of the file's pages."""
    return dict(pagestream.open_checkpoint(path))


def safetensors_numpy(path: Path) -> Arrays:
    """Returns every tensor, loaded with `safetensors.safe_open`."""
    with safetensors.safe_open(path, "np") as file:
        return {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 - not a mapping


def pagestream_torch(path: Path) -> dict[str, Tensor]:
    """Returns every tensor on copy-on-write pages of the file."""
    return pagestream.safetensors.torch.load_file(path)


def safetensors_torch(path: Path) -> dict[str, Tensor]:
    """Returns every tensor, loaded with `safetensors.torch.load_file`."""
    return safetensors.torch.load_file(path)


def total(arrays: Mapping[str, Any]) -> float:
    """Returns the sum of all elements of all arrays or tensors, which reads every page."""
    return sum(float(array.sum()) for array in arrays.values())


def verify(path: Path) -> None:
    """Compares the tensors of both packages bit by bit.

    Raises:
        DemoError: The tensors differ.
    """
    ours, theirs = pagestream_numpy(path), safetensors_numpy(path)
    our_tensors, their_tensors = pagestream_torch(path), safetensors_torch(path)
    if not ours.keys() == theirs.keys() == our_tensors.keys() == their_tensors.keys():
        message = "pagestream and safetensors read different names"
        raise DemoError(message)
    for name, array in ours.items():
        tensor = torch.tensor(array)
        same_arrays = array.dtype == theirs[name].dtype and np.array_equal(array, theirs[name])
        if not (same_arrays and torch.equal(our_tensors[name], their_tensors[name])):
            message = f"pagestream and safetensors read different values of {name}"
            raise DemoError(message)
        if not torch.equal(tensor, our_tensors[name]):
            message = f"pagestream reads different values of {name} for NumPy and for torch"
            raise DemoError(message)


def compare(path: Path, *, rounds: int, round_seconds: float) -> list[Row]:
    """Checks and times both packages, for NumPy and torch. The file is in the page cache.

    Args:
        path: A safetensors file.
        rounds: See `measure.alternate`.
        round_seconds: See `measure.alternate`.
    """
    verify(path)
    pairs: dict[tuple[str, str], tuple[Callable[[Path], Any], Callable[[Path], Any]]] = {
        ("open_checkpoint", "safetensors, NumPy"): (pagestream_numpy, safetensors_numpy),
        ("load_file", "safetensors, torch"): (pagestream_torch, safetensors_torch),
    }
    rows = []
    for (our_name, their_name), (ours, theirs) in pairs.items():
        calls = {
            "our open": lambda ours=ours: ours(path),
            "their open": lambda theirs=theirs: theirs(path),
            "our sum": lambda ours=ours: total(ours(path)),
            "their sum": lambda theirs=theirs: total(theirs(path)),
        }
        seconds = alternate(calls, rounds=rounds, round_seconds=round_seconds)
        for work, case in {"open": "open, every tensor", "sum": "and sum all elements"}.items():
            rows.append(
                Row(
                    group="weights: the trained model's file, in the page cache",
                    case=case,
                    ours=our_name,
                    theirs=their_name,
                    unit="seconds",
                    our_value=seconds[f"our {work}"],
                    their_value=seconds[f"their {work}"],
                )
            )
    return rows

"""A short summary of a checkpoint: its element types, its largest tensors, a page of HTML."""

from __future__ import annotations

import heapq
import math
from typing import TYPE_CHECKING, NamedTuple

from pagestream._common.amounts import count, size
from pagestream._common.html import page, table

if TYPE_CHECKING:
    from collections.abc import Iterable

    from pagestream.weights.tensor_info import TensorInfo

# Number of tensors on a page.
_SHOWN = 10


class DtypeSummary(NamedTuple):
    """The tensors of one element type."""

    dtype: str
    tensors: int
    elements: int
    nbytes: int


def by_dtype(tensors: Iterable[TensorInfo]) -> list[DtypeSummary]:
    """Returns a summary for each element type, with the most bytes first."""
    found: dict[str, DtypeSummary] = {}
    for tensor in tensors:
        _, number, elements, nbytes = found.get(tensor.dtype, DtypeSummary(tensor.dtype, 0, 0, 0))
        elements += math.prod(tensor.shape)
        found[tensor.dtype] = DtypeSummary(tensor.dtype, number + 1, elements, nbytes + tensor.nbytes)
    return sorted(found.values(), key=lambda group: -group.nbytes)


def largest(tensors: Iterable[TensorInfo], number: int) -> list[TensorInfo]:
    """Returns the tensors with the most bytes, the largest first."""
    return heapq.nlargest(number, tensors, key=lambda tensor: tensor.nbytes)


def html(name: str, files: int, tensors: list[TensorInfo]) -> str:
    """Returns a summary for notebooks.

    Args:
        name: The name of the checkpoint.
        files: The number of its files.
        tensors: All of its tensors.
    """
    types = by_dtype(tensors)
    total = f"{count(len(tensors), 'tensor')} of {size(sum(group.nbytes for group in types))}"
    shown = largest(tensors, _SHOWN)
    rest = len(tensors) - len(shown)
    return page(
        f"{name}: {total} in {count(files, 'file')}",
        table(
            ("dtype", "tensors", "elements", "size"),
            [
                (group.dtype, f"{group.tensors:,}", f"{group.elements:,}", size(group.nbytes))
                for group in types
            ],
        ),
        table(
            ("largest tensors", "dtype", "shape", "size"),
            [(tensor.name, tensor.dtype, str(list(tensor.shape)), size(tensor.nbytes)) for tensor in shown],
            f"and {count(rest, 'smaller tensor')}" if rest else "",
        ),
    )

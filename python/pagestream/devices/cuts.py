"""Cuts selections into parts that are copied to a device one after another."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from pagestream.weights.indexing import Selection

if TYPE_CHECKING:
    from collections.abc import Iterator


def cut(selection: Selection, most: int) -> Iterator[Selection]:
    """Cuts a selection into parts of at most `most` elements, which are consecutive in the result."""
    if 0 < selection.size <= most:
        yield selection
    if selection.size <= most:
        return
    length, stride = selection.shape[0], selection.strides[0]
    inner = math.prod(selection.shape[1:])
    step = max(1, most // inner)
    for index in range(0, length, step):
        first, count = selection.first + index * stride, min(step, length - index)
        if inner <= most:
            yield selection._replace(first=first, shape=(count, *selection.shape[1:]))
        else:
            yield from cut(Selection(first, selection.shape[1:], selection.strides[1:]), most)

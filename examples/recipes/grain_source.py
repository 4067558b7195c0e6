"""Token files as a Grain data source.

Use it as ``grain.MapDataset.source(TokenSource("train.bin", 1024))``.
"""

from __future__ import annotations

import operator
from typing import TYPE_CHECKING, SupportsIndex

import numpy as np

from pagestream import open_tokens

if TYPE_CHECKING:
    from os import PathLike

    import numpy.typing as npt


class TokenSource:
    """Windows that share no input token, as ``{"inputs": x, "targets": y}`` of int32.

    Grain's shuffle of 2^k + 1 elements, with an even k of 16 or more, repeats one
    element and omits the last one (seen in Grain 0.2.18). Shorten a source of such a
    length by one element.

    Grain's threads can read the source, and Grain can send it to its worker processes,
    because a pickle contains paths. The source has the methods of
    `grain.sources.RandomAccessDataSource`, which is a protocol and needs no base class.
    If jax is installed, Grain's workers require parsed absl flags: use `absl.app.run`
    or ``FLAGS.mark_as_parsed()``.
    """

    def __init__(self, path: str | PathLike[str], sequence_length: int) -> None:
        self.tokens = open_tokens(path)
        self.sequence_length = sequence_length

    def __len__(self) -> int:
        return (len(self.tokens) - 1) // self.sequence_length

    def __getitem__(self, index: SupportsIndex) -> dict[str, npt.NDArray[np.int32]]:
        start = operator.index(index) * self.sequence_length
        window = self.tokens.read(start, start + self.sequence_length + 1).astype(
            np.int32
        )
        return {"inputs": window[:-1], "targets": window[1:]}

    def __repr__(self) -> str:
        # Grain's DataLoader saves this text, and refuses a checkpoint whose source has
        # a different text.
        return f"TokenSource({self.tokens.fingerprint}, {self.sequence_length})"

"""The ids in token files: the largest id, and the first id outside a vocabulary."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    import numpy.typing as npt

    from pagestream.tokens.corpus import TokenCorpus, TokenShard

# Number of tokens read at a time.
_CHUNK_TOKENS = 4 << 20


@dataclass(frozen=True)
class IdRange:
    """The ids of a file.

    Attributes:
        smallest: The smallest id. It is negative only in files of a signed type.
        largest: The largest id.
    """

    smallest: int
    largest: int


def id_ranges(tokens: TokenCorpus) -> list[IdRange | None]:
    """Returns the ids of each file; None for a file without tokens. It reads all tokens."""
    return [_id_range(tokens, shard) for shard in tokens.shards]


def _id_range(tokens: TokenCorpus, shard: TokenShard) -> IdRange | None:
    ends = [(int(chunk.min()), int(chunk.max())) for _, chunk in _chunks(tokens, shard)]
    if not ends:
        return None
    return IdRange(min(low for low, _ in ends), max(high for _, high in ends))


def beyond(tokens: TokenCorpus, vocabulary: int, report: Callable[[int, int], None]) -> Iterator[str]:
    """Reports the first id of each file that is negative, or not below `vocabulary`.

    Args:
        tokens: The files.
        vocabulary: Number of ids.
        report: Called with the bytes done and the total bytes.
    """
    item_bytes = tokens.dtype.itemsize
    for shard in tokens.shards:
        for first, chunk in _chunks(tokens, shard):
            wrong = np.flatnonzero((chunk < 0) | (chunk >= vocabulary))
            if len(wrong):
                place = int(wrong[0])
                yield (
                    f"{shard.path}: token {first - shard.start + place} is {chunk[place]}, but a vocabulary "
                    f"of {vocabulary} has the ids 0 to {vocabulary - 1}"
                )
                break
            report((first + len(chunk)) * item_bytes, len(tokens) * item_bytes)


def _chunks(tokens: TokenCorpus, shard: TokenShard) -> Iterator[tuple[int, npt.NDArray[np.integer]]]:
    stop = shard.start + shard.tokens
    for first in range(shard.start, stop, _CHUNK_TOKENS):
        yield first, tokens.read(first, min(stop, first + _CHUNK_TOKENS))

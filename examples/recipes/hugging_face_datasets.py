"""Writes a Hugging Face dataset as a token file, and reads token files as datasets."""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING

import numpy as np
from datasets import Dataset, IterableDataset

from pagestream import open_tokens, write_tokens

if TYPE_CHECKING:
    from collections.abc import Iterator
    from os import PathLike

    import numpy.typing as npt


def write_dataset(
    path: str | PathLike[str],
    dataset: Dataset | IterableDataset,
    *,
    dtype: str,
    column: str = "input_ids",
) -> None:
    """Writes a column of token lists, one document per row, for a `TokenLoader`.

    A streaming dataset is never in memory as a whole. First append the tokenizer's end
    token to each row, for example in the `map` that tokenizes: a flat file has no other
    mark at the end of a document.
    """
    write_tokens(path, (np.asarray(row[column]) for row in dataset), dtype=dtype)


def windows(
    path: str | PathLike[str], sequence_length: int, ranges: list[tuple[int, int]]
) -> Iterator[dict[str, npt.NDArray[np.int64]]]:
    """Yields ``{"input_ids": …}`` for each window in some ranges of window numbers."""
    with open_tokens(path) as tokens:
        for first, end in ranges:
            for number in range(first, end):
                start = number * sequence_length
                yield {
                    "input_ids": tokens.read(start, start + sequence_length).astype(
                        np.int64
                    )
                }


def iterable_dataset(
    path: str | PathLike[str], *, sequence_length: int, shards: int = 64
) -> IterableDataset:
    """Returns windows that share no token, in file order, as a dataset with shards.

    `datasets` gives each worker of a DataLoader, and each node of
    ``split_dataset_by_node``, its own shards. ``shuffle(seed, buffer_size)`` shuffles
    shards, and rows within a buffer. ``state_dict()`` and
    ``load_state_dict()`` resume a pass.
    """
    with open_tokens(path) as tokens:
        count = len(tokens) // sequence_length
    ends = [count * each // shards for each in range(shards + 1)]
    # `datasets` divides lists among its workers, in this case the list of ranges.
    arguments = {
        "path": path,
        "sequence_length": sequence_length,
        "ranges": list(itertools.pairwise(ends)),
    }
    return IterableDataset.from_generator(windows, gen_kwargs=arguments)

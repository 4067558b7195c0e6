"""The keyword arguments of `TokenLoader`, and their checks."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal, TypedDict

import numpy as np

from pagestream import _native
from pagestream._common.checks import one_of

if TYPE_CHECKING:
    from collections.abc import Iterable

    from pagestream._common.types import Mode
    from pagestream.tokens.corpus import TokenCorpus

Order = Literal["shuffled", "random", "sequential", "blocked"]
Target = Literal["shift", "block", "none"]
BatchWord = Literal["int64", "int32", "raw"]
BatchDtype = BatchWord | type[np.int64 | np.int32] | np.dtype[np.int64 | np.int32]
DocumentOption = Literal["ignore", "boundaries"]
DropBehind = Literal["resident", "cache"]


class _RequiredOptions(TypedDict):
    # `Required[int]` would not be seen at run time: annotations are strings here.
    sequence_length: int
    batch_size: int


class StreamOptions(_RequiredOptions, total=False):
    """All arguments but the corpus and those that decide what a batch is."""

    order: Order
    seed: int
    epochs: int | None
    stride: int | None
    drop_last: bool
    rank: int | None
    world_size: int | None
    lookahead: int | None
    threads: int | None
    memory_bytes: int | None
    mmap_mode: Mode | None
    mixing_radius: int | None
    drop_behind: DropBehind | None
    vocabulary: int | None


class LoaderOptions(StreamOptions, total=False):
    """All arguments but the corpus; `TokenLoader` documents them."""

    target: Target
    documents: DocumentOption
    max_documents: int | None
    dtype: BatchDtype


def batch_dtype(value: object) -> Any:  # noqa: ANN401 - one of the words of `BatchDtype`
    """Returns the word for a type of batches; NumPy's own name for it is as good."""
    if isinstance(value, type) and issubclass(value, np.generic):
        value = np.dtype(value)
    word = value.name if isinstance(value, np.dtype) and value.isnative else value
    one_of("dtype", word, _native.BATCH_DTYPES)
    return word


def check_raw_dtype(dtype: object, corpora: Iterable[TokenCorpus]) -> None:
    """Refuses ``dtype="raw"`` for corpora of different types: a batch has one."""
    dtypes = sorted({corpus.dtype.name for corpus in corpora})
    if dtype == "raw" and len(dtypes) > 1:
        message = (
            f'dtype="raw" needs corpora of one type, not {", ".join(dtypes)}; use dtype="int64" or "int32"'
        )
        raise ValueError(message)


def check_drop_behind(drop_behind: object, corpora: Iterable[TokenCorpus]) -> None:
    """Refuses a ``drop_behind`` that does not exist, or that would have no effect."""
    if drop_behind is None:
        return
    one_of("drop_behind", drop_behind, _native.DROP_BEHIND)
    # Where "auto" had to step down, the same program has an effect on another mount.
    if drop_behind == "resident" and all(
        shard.mode == "read" and shard.reason is None for corpus in corpora for shard in corpus.shards
    ):
        message = (
            'drop_behind="resident" has no effect with mmap_mode="read": nothing is mapped; '
            'use "cache", or leave it out'
        )
        raise ValueError(message)


def check_long_enough(span_tokens: int, corpora: Iterable[TokenCorpus]) -> None:
    """Refuses corpora that are shorter than one window."""
    for corpus in corpora:
        if len(corpus) < span_tokens:
            message = (
                f"a window takes {span_tokens} tokens with its targets, but {corpus!r} has {len(corpus)}; "
                "use a shorter sequence_length, or more files"
            )
            raise ValueError(message)

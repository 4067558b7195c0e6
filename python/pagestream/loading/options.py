"""The keyword arguments of `TokenLoader`, and their checks."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal, TypedDict, get_args

import numpy as np

from pagestream import _native
from pagestream._common.checks import at_least, one_of, only_with
from pagestream._common.dtype_names import dtype_name
from pagestream._common.types import Mode

if TYPE_CHECKING:
    from collections.abc import Iterable

    from pagestream.tokens.corpus import TokenCorpus

Order = Literal["shuffled", "random", "sequential", "blocked"]
Target = Literal["shift", "block", "none"]
BatchWord = Literal["int64", "int32", "raw"]
if TYPE_CHECKING:
    import torch

    BatchDtype = BatchWord | type[np.int64 | np.int32] | np.dtype[np.int64 | np.int32] | torch.dtype
else:
    BatchDtype = BatchWord | type[np.int64 | np.int32] | np.dtype[np.int64 | np.int32]
DocumentOption = Literal["ignore", "boundaries"]
DropBehind = Literal["resident", "cache"]


class _RequiredOptions(TypedDict):
    # `Required[int]` would be invisible at run time, because annotations are strings here.
    sequence_length: int
    batch_size: int


class StreamOptions(_RequiredOptions, total=False):
    """All arguments except the corpus and the kind of batch."""

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
    """All arguments except the corpus; `TokenLoader` documents them."""

    target: Target
    documents: DocumentOption
    end_token: int | None
    begin_token: int | None
    max_documents: int | None
    dtype: BatchDtype


def batch_dtype(value: object) -> Any:  # noqa: ANN401 - one of the words of `BatchDtype`
    """Returns the word for a type of batches, given as this word or as a type of NumPy or torch."""
    word = dtype_name(value)
    if isinstance(word, str) and word in _native.TOKEN_DTYPES and word not in _native.BATCH_DTYPES:
        message = (
            f"dtype={word!r} is no type of batches: they are {', '.join(_native.BATCH_DTYPES)}; for the type "
            f'of the files pass open_tokens(path, dtype="{word}") as the tokens'
        )
        raise ValueError(message)
    one_of("dtype", word, _native.BATCH_DTYPES)
    return word


def check_raw_dtype(dtype: object, corpora: Iterable[TokenCorpus]) -> None:
    """Rejects ``dtype="raw"`` for corpora of different types, because a batch has a single type."""
    dtypes = sorted({corpus.dtype.name for corpus in corpora})
    if dtype == "raw" and len(dtypes) > 1:
        message = (
            f'dtype="raw" needs corpora of one type, not {", ".join(dtypes)}; use dtype="int64" or "int32"'
        )
        raise ValueError(message)


def check_documents(
    documents: object, end_token: int | None, begin_token: int | None, corpora: Iterable[TokenCorpus]
) -> None:
    """Rejects an unknown way to find documents, or one that these files do not support."""
    one_of("documents", documents, get_args(DocumentOption))
    is_packed = documents == "boundaries"
    given = {"end_token": end_token, "begin_token": begin_token}
    for name, token in given.items():
        only_with(name, token, needed=is_packed, needs='documents="boundaries"')
    markers = {name: at_least(0, name, token) for name, token in given.items() if token is not None}
    if len(markers) > 1:
        message = f"end_token={end_token} and begin_token={begin_token} exclude each other; pass one"
        raise ValueError(message)
    for name, token in markers.items():
        for corpus in corpora:
            greatest = np.iinfo(corpus.dtype).max
            if token > greatest:
                message = (
                    f"{name}={token} does not occur in {corpus!r}: its {corpus.dtype} tokens are at most "
                    f"{greatest}; pass the id that the files have"
                )
                raise ValueError(message)
    if is_packed and not markers:
        unrecorded = next((corpus for corpus in corpora if corpus.documents is None), None)
        if unrecorded is not None:
            message = (
                'documents="boundaries" needs files that record documents, as Megatron and datatrove do, '
                f"and {unrecorded!r} does not; pass end_token=, the id that ends each document (50256 for "
                "GPT-2), or begin_token="
            )
            raise ValueError(message)


def checked_vocabulary(vocabulary: int | None, **markers: int | None) -> int | None:
    """Returns the number of ids. Rejects a document marker that is not a valid id."""
    if vocabulary is None:
        return None
    ids = at_least(1, "vocabulary", vocabulary)
    for name, token in markers.items():
        if token is not None and token >= ids:
            message = (
                f"{name}={token} is not one of the ids 0 to {ids - 1} of vocabulary={ids}; pass the id that "
                "the files have, and the number of ids that the model has"
            )
            raise ValueError(message)
    return ids


def check_drop_behind(drop_behind: object, corpora: Iterable[TokenCorpus]) -> None:
    """Rejects an unknown ``drop_behind``, or one without any effect."""
    if drop_behind is None:
        return
    one_of("drop_behind", drop_behind, _native.DROP_BEHIND)
    # If "auto" fell back to "read", the option would have an effect on another mount.
    if drop_behind == "resident" and all(
        shard.mode == "read" and shard.reason is None for corpus in corpora for shard in corpus.shards
    ):
        message = (
            'drop_behind="resident" has no effect with mmap_mode="read": nothing is mapped; '
            'use "cache", or leave it out'
        )
        raise ValueError(message)


def check_long_enough(span_tokens: int, corpora: Iterable[TokenCorpus]) -> None:
    """Rejects corpora that are shorter than one window."""
    for corpus in corpora:
        if len(corpus) < span_tokens:
            message = (
                f"a window takes {span_tokens} tokens with its targets, but {corpus!r} has {len(corpus)}; "
                "use a shorter sequence_length, or more files"
            )
            raise ValueError(message)

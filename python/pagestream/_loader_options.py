"""The keyword arguments of `TokenLoader`, for classes that pass them on."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal, TypedDict

if TYPE_CHECKING:
    from pagestream._environment import Mode

Order = Literal["shuffled", "random", "sequential", "blocked"]
Target = Literal["shift", "block", "none"]
BatchDtype = Literal["int64", "int32", "raw"]


class _Required(TypedDict):
    sequence_length: int
    batch_size: int


class LoaderOptions(_Required, total=False):
    """All but the corpus; what they mean stands in `TokenLoader`."""

    order: Order
    seed: int
    epochs: int | None
    stride: int | None
    target: Target
    documents: Literal["ignore", "boundaries"]
    max_documents: int | None
    drop_last: bool
    rank: int | None
    world_size: int | None
    dtype: BatchDtype
    lookahead: int | Literal["auto"]
    threads: int | None
    memory_bytes: int | None
    mmap_mode: Mode | None
    mixing_radius: int | None
    drop_behind: Literal["resident", "cache"] | None

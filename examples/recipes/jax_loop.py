"""Batches for JAX, on one process or many, without Grain.

A state is a small dictionary. Save it as JSON next to the checkpoint of the model.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import jax
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from pagestream import TokenLoader

if TYPE_CHECKING:
    from collections.abc import Iterator
    from os import PathLike


def token_loader(
    path: str | PathLike[str], *, sequence_length: int, batch_size: int, seed: int
) -> TokenLoader:
    """Returns a loader for this process; int32, because JAX has no int64 by default."""
    return TokenLoader(
        path,
        sequence_length=sequence_length,
        batch_size=batch_size,
        seed=seed,
        dtype="int32",
        rank=jax.process_index(),
        world_size=jax.process_count(),
    )


def device_batches(
    loader: TokenLoader, mesh: Mesh, axis: str
) -> Iterator[tuple[jax.Array, jax.Array]]:
    """Yields an epoch, or the rest of it, as global arrays with rows along an axis."""
    rows = NamedSharding(mesh, PartitionSpec(axis))
    for x, y in loader:
        yield (
            jax.make_array_from_process_local_data(rows, x),
            jax.make_array_from_process_local_data(rows, y),
        )

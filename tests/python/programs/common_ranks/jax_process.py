"""One of two JAX processes. Prints the rank of its loader and the first token of the first batch."""

import sys

import jax

from pagestream import TokenLoader

path, coordinator, rank = sys.argv[1:]
jax.distributed.initialize(coordinator, num_processes=2, process_id=int(rank))
with TokenLoader(path, sequence_length=4, batch_size=1, order="sequential") as loader:
    print(loader.rank, "of", f"{loader.world_size}:", next(loader).x[0, 0])
jax.distributed.shutdown()

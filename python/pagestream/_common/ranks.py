"""The rank of this process among those that train together."""

from __future__ import annotations

import os
import sys

from pagestream._common import environment
from pagestream._common.checks import at_least

# How launchers tell a process how many of its job run on this node: torchrun, Open MPI, MPICH and Intel MPI.
_LOCAL_SIZES = ("LOCAL_WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_SIZE", "MPI_LOCALNRANKS")


def local_processes() -> int:
    """Returns the number of processes of this job on this node, as far as a launcher tells."""
    return max(environment.number(name, 1, least=1) for name in _LOCAL_SIZES)


def is_first_rank() -> bool:
    """Returns whether this process is rank 0, as far as anything says that there are others."""
    try:
        return rank_and_world_size(None, None)[0] == 0
    except ValueError:
        # Some launchers set WORLD_SIZE alone. Work that asks for no rank goes on.
        return True


def rank_and_world_size(rank: int | None, world_size: int | None) -> tuple[int, int]:
    """Returns rank and world size: those given, else those of torch.distributed, else the environment's."""
    if (rank is None) != (world_size is None):
        message = "rank and world_size go together: pass both or neither"
        raise ValueError(message)
    if rank is not None and world_size is not None:
        return at_least(0, "rank", rank), at_least(1, "world_size", world_size)
    # Only a process that has imported torch can have set it up.
    distributed = sys.modules.get("torch.distributed")
    if distributed is not None and distributed.is_available() and distributed.is_initialized():
        return int(distributed.get_rank()), int(distributed.get_world_size())
    ranks = environment.number("WORLD_SIZE", 1, least=1)
    own = environment.number("RANK", 0 if ranks == 1 else -1, least=0)
    if not 0 <= own < ranks:
        found = "is not set" if own < 0 else f"is {own}"
        given = f"is {ranks}" if "WORLD_SIZE" in os.environ else "is not set"
        message = f"WORLD_SIZE {given}, but RANK {found}; set both, or pass rank and world_size"
        raise ValueError(message)
    return own, ranks

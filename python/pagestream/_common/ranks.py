"""The rank of this process in its job."""

from __future__ import annotations

import os
import sys

from pagestream._common import environment
from pagestream._common.checks import at_least

# The launchers' variables for the number of the job's processes on this node: torchrun, Open MPI, MPICH and
# Intel MPI.
_LOCAL_SIZES = ("LOCAL_WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_SIZE", "MPI_LOCALNRANKS")

# The variables of each launcher: the number of processes of the job, and the rank of this one. The first
# launcher with a number counts. If it reports one process, no later one may report several. Slurm comes last,
# because processes of Open MPI and MPICH inherit its variables from their daemon. srun sets the number for a
# step; a batch script has none.
_LAUNCHERS = (
    ("WORLD_SIZE", "RANK"),  # torchrun, accelerate, DeepSpeed
    ("OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_RANK"),  # Open MPI
    ("PMI_SIZE", "PMI_RANK"),  # MPICH and Intel MPI
    ("JAX_NUM_PROCESSES", "JAX_PROCESS_ID"),
    ("SLURM_STEP_NUM_TASKS", "SLURM_PROCID"),
)


def local_processes() -> int:
    """Returns the number of this job's processes on this node, as far as a launcher shows it."""
    return max(environment.number(name, 1, least=1) for name in _LOCAL_SIZES)


def is_first_rank() -> bool:
    """Returns whether this process is rank 0. True if its rank is unknown."""
    try:
        return rank_and_world_size(None, None)[0] == 0
    except ValueError:
        # Some launchers set only WORLD_SIZE. Work that needs no rank continues.
        return True


def rank_and_world_size(rank: int | None, world_size: int | None) -> tuple[int, int]:
    """Returns the given rank and world size, the rank and world size of this process, or 0 and 1.

    Raises:
        ValueError: Only one of them is given, or the variables of launchers contradict each other.
    """
    if (rank is None) != (world_size is None):
        message = "rank and world_size go together: pass both or neither"
        raise ValueError(message)
    if rank is not None and world_size is not None:
        return at_least(0, "rank", rank), at_least(1, "world_size", world_size)
    return of_this_process() or (0, 1)


def of_this_process() -> tuple[int, int] | None:
    """Returns rank and world size from torch.distributed, JAX or a launcher. None if they are unknown.

    Raises:
        ValueError: The variables of launchers contradict each other.
    """
    if (initialised := _initialised()) is not None:
        return initialised
    for place, (size_name, rank_name) in enumerate(_LAUNCHERS):
        if size_name in os.environ or (rank_name == "RANK" and rank_name in os.environ):
            rank, ranks = _of_launcher(size_name, rank_name)
            if ranks == 1:
                _check_alone(size_name, [name for name, _ in _LAUNCHERS[place + 1 :]])
            return rank, ranks
    return None


def check_unchanged(rank: int, world_size: int) -> None:
    """Raises if torch.distributed or JAX was initialised later, with another rank or world size.

    Raises:
        RuntimeError: The rank or the world size has changed.
    """
    found = _initialised()
    if found is not None and found != (rank, world_size):
        message = (
            f"created for rank {rank} of {world_size}, before the process group was initialised, but this "
            f"process is rank {found[0]} of {found[1]}, so ranks would read the same data; create it after "
            "init_process_group or jax.distributed.initialize, or pass rank and world_size"
        )
        raise RuntimeError(message)


def _initialised() -> tuple[int, int] | None:
    """Returns rank and world size of torch.distributed or JAX, if the program has initialised one of them."""
    # Only a process that has imported a framework can have initialised it.
    distributed = sys.modules.get("torch.distributed")
    if distributed is not None and distributed.is_available() and distributed.is_initialized():
        return int(distributed.get_rank()), int(distributed.get_world_size())
    # JAX has this function since 0.5.
    is_initialised = getattr(sys.modules.get("jax.distributed"), "is_initialized", None)
    if is_initialised is not None and is_initialised():
        jax = sys.modules["jax"]
        return int(jax.process_index()), int(jax.process_count())
    return None


def _check_alone(size_name: str, others: list[str]) -> None:
    """Raises if a launcher other than that with `size_name`, which reports one process, reports several."""
    for other in others:
        ranks = environment.number(other, 1, least=1)
        if ranks > 1:
            given = "is 1" if size_name in os.environ else "is not set"
            message = (
                f"{size_name} {given}, but {other} is {ranks}, so ranks could read the same data; "
                "pass rank and world_size, or unset the wrong one"
            )
            raise ValueError(message)


def _of_launcher(size_name: str, rank_name: str) -> tuple[int, int]:
    ranks = environment.number(size_name, 1, least=1)
    own = environment.number(rank_name, 0 if ranks == 1 else -1, least=0)
    if not 0 <= own < ranks:
        found = "is not set" if own < 0 else f"is {own}"
        given = f"is {ranks}" if size_name in os.environ else "is not set"
        message = f"{size_name} {given}, but {rank_name} {found}; set both, or pass rank and world_size"
        raise ValueError(message)
    return own, ranks

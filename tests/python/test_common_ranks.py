"""The rank of a process: from arguments, torch.distributed, JAX or a launcher."""

import socket

import numpy as np
import pytest
import torch
import torch.distributed as dist

from pagestream import TokenLoader
from pagestream._common.ranks import of_this_process, rank_and_world_size
from pagestream.torch import DistributedTokenSampler

from support.process import PROGRAMS, start_python

VARIABLES = ["WORLD_SIZE", "RANK", "OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_RANK", "PMI_SIZE", "PMI_RANK"]
VARIABLES += ["JAX_NUM_PROCESSES", "JAX_PROCESS_ID", "SLURM_STEP_NUM_TASKS", "SLURM_PROCID", "SLURM_NTASKS"]


@pytest.fixture(autouse=True)
def _no_launcher(monkeypatch):
    for name in VARIABLES:
        monkeypatch.delenv(name, raising=False)


@pytest.fixture
def group():
    """Initialises torch.distributed as rank 1 of 2 when called."""

    def initialise():
        store = torch.distributed.HashStore()
        dist.init_process_group("fake", rank=1, world_size=2, store=store)

    import torch.testing._internal.distributed.fake_pg  # registers the backend

    yield initialise
    if dist.is_initialized():
        dist.destroy_process_group()


@pytest.fixture
def path(tmp_path):
    np.arange(1000, dtype="u2").tofile(tmp_path / "tokens.bin")
    return tmp_path / "tokens.bin"


def loader(path, **ranks):
    return TokenLoader(path, sequence_length=4, batch_size=1, order="sequential", **ranks)


@pytest.mark.parametrize(
    ("variables", "expected"),
    [
        ({}, None),
        ({"WORLD_SIZE": "4", "RANK": "3"}, (3, 4)),
        ({"OMPI_COMM_WORLD_SIZE": "4", "OMPI_COMM_WORLD_RANK": "2"}, (2, 4)),
        ({"PMI_SIZE": "4", "PMI_RANK": "1"}, (1, 4)),
        ({"JAX_NUM_PROCESSES": "4", "JAX_PROCESS_ID": "0"}, (0, 4)),
        ({"SLURM_STEP_NUM_TASKS": "4", "SLURM_PROCID": "3"}, (3, 4)),
        # A Slurm batch script runs outside any step: it is a single process.
        ({"SLURM_NTASKS": "4", "SLURM_PROCID": "0"}, None),
        # srun starts torchrun on each of two nodes.
        ({"WORLD_SIZE": "16", "RANK": "9", "SLURM_STEP_NUM_TASKS": "2", "SLURM_PROCID": "1"}, (9, 16)),
        # mpirun runs on two nodes, where srun has started its daemons.
        (
            {
                "OMPI_COMM_WORLD_SIZE": "8",
                "OMPI_COMM_WORLD_RANK": "5",
                "SLURM_STEP_NUM_TASKS": "2",
                "SLURM_PROCID": "1",
            },
            (5, 8),
        ),
        # The tasks of a batch script do not belong to torchrun.
        ({"WORLD_SIZE": "8", "RANK": "3", "SLURM_NTASKS": "2"}, (3, 8)),
        ({"WORLD_SIZE": "1", "RANK": "0", "SLURM_NTASKS": "2"}, (0, 1)),
        ({"WORLD_SIZE": "1", "OMPI_COMM_WORLD_SIZE": "1", "SLURM_STEP_NUM_TASKS": "1"}, (0, 1)),
    ],
)
def test_launchers_name_the_rank(monkeypatch, path, variables, expected):
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    assert of_this_process() == expected
    assert rank_and_world_size(None, None) == (expected or (0, 1))
    assert rank_and_world_size(1, 3) == (1, 3)
    with loader(path) as found:
        assert (found.rank, found.world_size) == (expected or (0, 1))
        assert next(found).x[0, 0] == 4 * found.rank


@pytest.mark.parametrize("size_name", ["OMPI_COMM_WORLD_SIZE", "PMI_SIZE", "SLURM_STEP_NUM_TASKS"])
def test_half_of_a_launchers_variables_is_refused(monkeypatch, path, size_name):
    monkeypatch.setenv(size_name, "2")
    with pytest.raises(ValueError, match=f"{size_name} is 2, but .* is not set; set both, or pass rank"):
        loader(path)


@pytest.mark.parametrize(
    ("variables", "told"),
    [
        (
            {"WORLD_SIZE": "1", "RANK": "0", "SLURM_STEP_NUM_TASKS": "8", "SLURM_PROCID": "5"},
            "WORLD_SIZE is 1, but SLURM_STEP_NUM_TASKS is 8",
        ),
        (
            {"WORLD_SIZE": "1", "OMPI_COMM_WORLD_SIZE": "4", "OMPI_COMM_WORLD_RANK": "2"},
            "WORLD_SIZE is 1, but OMPI_COMM_WORLD_SIZE is 4",
        ),
        (
            {"OMPI_COMM_WORLD_SIZE": "1", "OMPI_COMM_WORLD_RANK": "0", "PMI_SIZE": "4", "PMI_RANK": "2"},
            "OMPI_COMM_WORLD_SIZE is 1, but PMI_SIZE is 4",
        ),
        ({"RANK": "0", "PMI_SIZE": "4", "PMI_RANK": "2"}, "WORLD_SIZE is not set, but PMI_SIZE is 4"),
    ],
)
def test_launchers_that_contradict_each_other_are_refused(monkeypatch, path, variables, told):
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    with pytest.raises(ValueError, match=f"^{told}, .* pass rank and world_size"):
        loader(path)
    with loader(path, rank=1, world_size=3) as given:
        assert (given.rank, given.world_size) == (1, 3)


def test_a_process_group_is_asked_before_launchers(monkeypatch, path, group):
    monkeypatch.setenv("WORLD_SIZE", "1")
    monkeypatch.setenv("PMI_SIZE", "4")
    group()
    with loader(path) as found:
        assert (found.rank, found.world_size) == (1, 2)


def test_a_loader_from_before_the_process_group_is_refused_at_its_first_batch(path, group):
    before = loader(path)
    given = loader(path, rank=0, world_size=1)
    group()
    told = r"created for rank 0 of 1, before .* rank 1 of 2, .* after init_process_group"
    for _ in range(2):
        with pytest.raises(RuntimeError, match=told):
            next(before)
    assert next(given).x[0, 0] == 0
    with loader(path) as after:
        assert next(after).x[0, 0] == 4
    before.close()
    given.close()


def test_a_loader_from_before_the_process_group_is_right_if_the_launcher_was(monkeypatch, path, group):
    monkeypatch.setenv("WORLD_SIZE", "2")
    monkeypatch.setenv("RANK", "1")
    with loader(path) as before:
        group()
        assert next(before).x[0, 0] == 4


def test_a_loader_with_a_batch_taken_continues(path, group):
    """The first batch decides whether the rank was right. A process group for another purpose may follow."""
    with loader(path) as before:
        next(before)
        group()
        assert next(before).x[0, 0] == 4


def test_a_sampler_needs_ranks_as_torchs_own_does(group):
    for sampler in (DistributedTokenSampler, torch.utils.data.DistributedSampler):
        with pytest.raises(ValueError, match=r"initialized|initialised"):
            sampler(range(8))
    assert sorted(DistributedTokenSampler(range(8), num_replicas=1, rank=0)) == list(range(8))
    group()
    assert list(DistributedTokenSampler(range(8), shuffle=False)) == [1, 3, 5, 7]


def test_a_sampler_from_before_the_process_group_is_refused_at_its_first_index(monkeypatch, group):
    monkeypatch.setenv("WORLD_SIZE", "4")
    monkeypatch.setenv("RANK", "2")
    before = DistributedTokenSampler(range(8))
    given = DistributedTokenSampler(range(8), 4, 2, shuffle=False)
    group()
    with pytest.raises(RuntimeError, match="created for rank 2 of 4"):
        iter(before)
    assert list(given) == [2, 6]


def test_processes_of_jax_get_different_windows(path):
    with socket.socket() as place:
        place.bind(("127.0.0.1", 0))
        port = place.getsockname()[1]
    program = PROGRAMS / "common_ranks/jax_process.py"
    running = [start_python(program, path, f"127.0.0.1:{port}", rank) for rank in range(2)]
    printed = [each.communicate()[0].split() for each in running]
    assert printed == [["0", "of", "2:", "0"], ["1", "of", "2:", "4"]]

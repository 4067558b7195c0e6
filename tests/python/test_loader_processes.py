"""Ranks of one node that read a corpus from a slow mount at the same time share the page cache."""

import numpy as np
import pytest

from support import real
from support.process import PROGRAMS
from support.together import begin, last_lines, processes

RANK = PROGRAMS / "loader_processes/rank.py"
SEQUENCE_LENGTH = 2048
WINDOWS = 4096


@pytest.fixture(scope="module")
def tokens(tmp_path_factory):
    path = tmp_path_factory.mktemp("corpus") / "tokens.bin"
    length = WINDOWS * SEQUENCE_LENGTH + 1
    np.random.default_rng(0).integers(0, 50_000, length, dtype="u2").tofile(path)
    return path


@pytest.mark.parametrize("order", ["shuffled", "sequential", "blocked"])
@pytest.mark.parametrize("world_size", [1, 4])
def test_ranks_that_read_together_read_each_byte_once(tokens, tmp_path, order, world_size):
    # Without `keep_cache`, the kernel drops the cached pages whenever a rank opens the file.
    with real.slow_fuse(tokens.parent, tmp_path / "slow", delay_ms=2, keep_cache=True) as slow:
        path = slow.path / tokens.name
        with processes(RANK, [(path, order, rank, world_size) for rank in range(world_size)]) as ranks:
            begin(ranks)
            found = np.array([line.split() for line in last_lines(ranks)], dtype=np.int64)
    inputs = np.fromfile(tokens, "u2")[:-1]
    assert found.sum(axis=0).tolist() == [WINDOWS, int(inputs.sum(dtype=np.int64))]
    assert found[:, 0].min() >= WINDOWS // world_size - 8
    size_bytes = tokens.stat().st_size
    assert size_bytes <= slow.counts["read_bytes"] <= 1.01 * size_bytes

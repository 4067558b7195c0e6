"""Forks while other threads are at work: no child waits for a thread that exists only in its parent."""

from __future__ import annotations

import os

import numpy as np
import pytest

from support import real
from support.process import PROGRAMS, output_of
from support.weight_files import entry, weight_file


@pytest.fixture
def shards(tmp_path):
    """Makes 400 files of 5,000 tokens each."""
    folder = tmp_path / "shards"
    folder.mkdir()
    for number in range(400):
        np.arange(5000, dtype="u2").tofile(folder / f"{number}.bin")
    return folder


@pytest.mark.parametrize("program", ["batches", "close", "tensors", "staging"])
@pytest.mark.stress
def test_a_child_can_use_the_objects_of_its_parents_threads(shards, program):
    output = output_of(PROGRAMS / f"forks/{program}.py", shards)
    found, count = output.splitlines()[-1].split()
    assert found == count, output


@pytest.mark.stress
def test_a_child_keeps_nothing_of_what_its_parents_threads_unmap(tmp_path):
    size = 100 << 20
    for number in range(4):
        path = tmp_path / f"{number}.safetensors"
        path.write_bytes(weight_file({"t": entry("U8", [size], 0, size)}))
        with open(path, "r+b") as file:
            file.truncate(path.stat().st_size + size)
    output = output_of(PROGRAMS / "forks/unmapping.py", tmp_path)
    found, count = output.splitlines()[-1].split()
    assert found == count


def test_a_child_with_the_id_of_its_parent_is_no_less_a_child(shards):
    if os.geteuid() != 0:
        real.missing("root, for namespaces of process ids")
    unshare = real.need_tool("unshare")
    code = PROGRAMS / "forks/namespaces.py"
    wrapper = (unshare, "--pid", "--fork", "--kill-child")
    assert output_of(code, shards, wrapper=wrapper) == "0"

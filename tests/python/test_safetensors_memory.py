"""The cost of tensors: private memory, descriptors, mappings, and the time to free the last tensor."""

from __future__ import annotations

import re

import numpy as np
import pytest

import pagestream.safetensors.numpy as ours

from support import real
from support.process import PROGRAMS, output_of
from support.weight_files import entry, weight_file

MIB = 1 << 20


@pytest.fixture
def large(tmp_path):
    """Returns a file of 64 MiB with 16 tensors."""
    arrays = {str(number): np.full(MIB, number, "f4") for number in range(16)}
    ours.save_file(arrays, tmp_path / "large.safetensors")
    return tmp_path / "large.safetensors"


@pytest.fixture
def sparse(tmp_path):
    """Returns a sparse file of 256 MiB."""
    path = tmp_path / "sparse.safetensors"
    path.write_bytes(weight_file({"t": entry("U8", [256 * MIB], 0, 256 * MIB)}))
    with open(path, "r+b") as file:
        file.truncate(path.stat().st_size + 256 * MIB)
    return path


@pytest.mark.parametrize("framework", ["np", pytest.param("pt", marks=pytest.mark.frameworks)])
def test_reading_the_whole_file_takes_no_private_memory(large, framework):
    code = PROGRAMS / "safetensors_memory/reading_all_of_it_takes_no_memory.py"
    grown = int(output_of(code, large, framework))
    assert grown < 4 * MIB


def test_opening_a_file_of_eight_gib_costs_its_header(tmp_path):
    size = 8 << 30
    path = tmp_path / "huge.safetensors"
    path.write_bytes(weight_file({"t": entry("U8", [size], 0, size)}))
    with open(path, "r+b") as file:
        file.truncate(path.stat().st_size + size)
    code = PROGRAMS / "safetensors_memory/opening_a_file_of_eight_gib_costs.py"
    grown, shape = output_of(code, path).split(maxsplit=1)
    assert int(grown) < MIB
    assert shape == f"({size},)"


def test_in_read_mode_memory_follows_what_is_asked(large):
    code = PROGRAMS / "safetensors_memory/in_read_mode_memory_follows_what_is.py"
    with_rows, with_one = map(int, output_of(code, large).split())
    assert with_rows < MIB
    assert 4 * MIB <= with_one < 6 * MIB


def test_ten_thousand_opens_and_closes_leave_nothing(large):
    code = PROGRAMS / "safetensors_memory/ten_thousand_times_open_and_closed_leave.py"
    grown, descriptors, mappings = map(int, output_of(code, large).split())
    assert grown < MIB
    assert (descriptors, mappings) == (0, 0)


def threads_that_unmap(program, path, tmp_path):
    """Runs a program. Returns its output, and the threads that unmapped a large range."""
    strace, log = real.need_tool("strace"), tmp_path / "log"
    wrapper = (strace, "-f", "-qq", "-o", str(log), "-e", "trace=munmap")
    printed = output_of(PROGRAMS / "safetensors_memory" / program, path, wrapper=wrapper).split()
    calls = re.findall(
        r"^(\d+) +munmap\(0x[0-9a-f]+, (\d+)(?:\)| <unfinished)", log.read_text(), re.MULTILINE
    )
    return printed, {thread for thread, size in calls if int(size) >= 256 * MIB}


def test_a_large_mapping_is_unmapped_by_another_thread(sparse, tmp_path):
    (process, left), by = threads_that_unmap("a_large_mapping_is_unmapped_by_another.py", sparse, tmp_path)
    assert left == "0"
    # The file's read-only mapping was not used, so the caller unmaps that mapping itself.
    assert by - {process}


def test_an_unused_large_mapping_is_unmapped_by_the_caller(sparse, tmp_path):
    (process, names), by = threads_that_unmap("a_large_mapping_that_nobody_used.py", sparse, tmp_path)
    assert int(names) >= 1
    assert by == {process}

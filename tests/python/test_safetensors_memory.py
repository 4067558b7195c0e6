"""What tensors cost: memory of one's own, descriptors, mappings, and the time of who lets the last one go."""

from __future__ import annotations

import re
import textwrap

import numpy as np
import pytest

import pagestream.safetensors.numpy as ours

from support import real
from support.process import output_of
from support.weight_files import entry, weight_file

MIB = 1 << 20
COUNTING = """
import os, sys, time
import numpy as np

def status(key):
    lines = open("/proc/self/status").read().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith(key)) << 10

def descriptors():
    return len(os.listdir("/proc/self/fd"))

def mappings():
    return sum(sys.argv[1] in line for line in open("/proc/self/maps"))
"""


@pytest.fixture
def large(tmp_path):
    """64 MiB in 16 tensors."""
    arrays = {str(number): np.full(MIB, number, "f4") for number in range(16)}
    ours.save_file(arrays, tmp_path / "large.safetensors")
    return tmp_path / "large.safetensors"


@pytest.fixture
def sparse(tmp_path):
    """A file of 256 MiB of which nothing is written."""
    path = tmp_path / "sparse.safetensors"
    path.write_bytes(weight_file({"t": entry("U8", [256 * MIB], 0, 256 * MIB)}))
    with open(path, "r+b") as file:
        file.truncate(path.stat().st_size + 256 * MIB)
    return path


@pytest.mark.parametrize("framework", ["np", "pt"])
def test_reading_all_of_it_takes_no_memory_of_ones_own(large, framework):
    code = """
    from pagestream.safetensors import safe_open
    def total():
        with safe_open(sys.argv[1], sys.argv[2]) as file:
            tensors = file.get_tensors()
        return tensors, [float(tensor.sum()) for tensor in tensors.values()]
    total()  # what a first time costs
    before = status("RssAnon")
    tensors, sums = total()
    assert sorted(sums) == [number * (1 << 20) for number in range(16)]
    print(status("RssAnon") - before)
    """
    grown = int(output_of(COUNTING + textwrap.dedent(code), large, framework))
    assert grown < 4 * MIB


def test_opening_a_file_of_eight_gib_costs_its_header(tmp_path):
    size = 8 << 30
    path = tmp_path / "huge.safetensors"
    path.write_bytes(weight_file({"t": entry("U8", [size], 0, size)}))
    with open(path, "r+b") as file:
        file.truncate(path.stat().st_size + size)
    code = """
    from pagestream.safetensors import safe_open
    safe_open(sys.argv[1], "np")
    before = status("VmRSS")
    file = safe_open(sys.argv[1], "np")
    array = file.get_tensor("t")
    print(status("VmRSS") - before, array.shape)
    """
    grown, shape = output_of(COUNTING + textwrap.dedent(code), path).split(maxsplit=1)
    assert int(grown) < MIB
    assert shape == f"({size},)"


def test_in_read_mode_memory_follows_what_is_asked(large):
    code = """
    from pagestream.safetensors import safe_open
    file = safe_open(sys.argv[1], "np", mmap_mode="read")
    before = status("RssAnon")
    rows = file.get_slice("7")[:1000]
    with_rows = status("RssAnon") - before
    one = file.get_tensor("5")
    print(with_rows, status("RssAnon") - before)
    """
    with_rows, with_one = map(int, output_of(COUNTING + textwrap.dedent(code), large).split())
    assert with_rows < MIB
    assert 4 * MIB <= with_one < 6 * MIB


def test_ten_thousand_times_open_and_closed_leave_nothing(large):
    code = """
    from pagestream import open_checkpoint
    from pagestream.safetensors import safe_open
    def use(turn):
        with safe_open(sys.argv[1], "np") as file:
            array = file.get_tensor("3")
        assert array[7] == 3
        kept = open_checkpoint(sys.argv[1])
        view = kept["5"][turn % 100 :]
        if turn % 2:
            kept.close()
        assert view[0] == 5
    def held():
        for _ in range(500):
            if not mappings(): break
            time.sleep(0.01)  # large mappings go by threads of their own
        return status("RssAnon"), descriptors(), mappings()
    for turn in range(200): use(turn)
    before = held()
    for turn in range(10_000): use(turn)
    after = held()
    print(after[0] - before[0], after[1] - before[1], after[2])
    """
    grown, descriptors, mappings = map(int, output_of(COUNTING + textwrap.dedent(code), large).split())
    assert grown < MIB
    assert (descriptors, mappings) == (0, 0)


def test_a_large_mapping_is_unmapped_by_another_thread(sparse, tmp_path):
    strace, log = real.need_tool("strace"), tmp_path / "log"
    code = """
    from pagestream.safetensors import safe_open
    with safe_open(sys.argv[1], "np") as file:
        array = file.get_tensor("t")
    assert array[-1] == 0
    del array, file
    for _ in range(500):
        if not mappings(): break
        time.sleep(0.01)
    print(os.getpid(), mappings())
    """
    wrapper = (strace, "-f", "-qq", "-o", str(log), "-e", "trace=munmap")
    process, left = output_of(COUNTING + textwrap.dedent(code), sparse, wrapper=wrapper).split()
    assert left == "0"
    calls = re.findall(r"^(\d+) +munmap\(0x[0-9a-f]+, (\d+)\)", log.read_text(), re.MULTILINE)
    by = {thread for thread, size in calls if int(size) >= 256 * MIB}
    assert by
    assert process not in by

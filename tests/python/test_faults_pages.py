"""The pages that are replaced when a file fails, and the cost of it."""

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import save_file

from support import real
from support.process import output_of

USE = """
import ctypes, os, sys
import numpy as np
from pagestream import MappedFile
from pagestream.errors import MappedReadError
from pagestream.safetensors import safe_open
path = sys.argv[1]

def used(function):
    try:
        function()
        for _ in range(100): pass
    except MappedReadError as error:
        return error
    raise AssertionError("nothing was raised")
"""


def test_a_large_file_that_was_cut_is_not_walked_page_by_page(tmp_path: Path) -> None:
    """The thread holds the interpreter's lock meanwhile, and handles no signal."""
    strace = real.need_tool("strace")
    path = tmp_path / "sparse"
    with path.open("wb") as file:
        file.truncate(64 << 30)
    log = tmp_path / "log"
    code = (
        USE
        + """
array = np.frombuffer(MappedFile(path), "u1")
os.truncate(path, 4096)
error = used(lambda: array[32 << 30])
print(error.offset, error.length == (64 << 30) - 4096)
"""
    )
    wrapper = (strace, "-f", "-qq", "-e", "trace=mincore", "-o", str(log))
    assert output_of(code, path, wrapper=wrapper) == "4096 True"
    assert len(log.read_text().splitlines()) < 100


@pytest.fixture
def swap() -> Iterator[None]:
    """64 MiB of swap space on zram, where a page is gone as soon as it is written."""
    control = Path("/sys/class/zram-control/hot_add")
    if os.geteuid() != 0 or not control.exists():
        real.missing("root and zram, for swap space")
    number = control.read_text().strip()
    device = f"/dev/zram{number}"
    try:
        Path(f"/sys/block/zram{number}/disksize").write_text("64M")
        subprocess.run([real.need_tool("mkswap"), device], check=True, capture_output=True)
        subprocess.run([real.need_tool("swapon"), "-p", "100", device], check=True, capture_output=True)
        try:
            yield
        finally:
            subprocess.run(["swapoff", device], check=True)
    finally:
        control.with_name("hot_remove").write_text(number)


# Pages of 256 that were written and are in swap.
SWAPPED = (
    USE
    + """
x = safe_open(path, "np").get_tensor("x").reshape(-1, 1024)
written = [95, 96, 103, 104, 120, 200]
first = x.ctypes.data // 4096 * 4096
for page in written:
    ctypes.memset(first + page * 4096, page, 4096)
MADV_PAGEOUT = 21
libc = ctypes.CDLL(None, use_errno=True)
libc.madvise.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]
libc.mincore.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_char_p]
for page in written:
    assert libc.madvise(first + page * 4096, 4096, MADV_PAGEOUT) == 0, ctypes.get_errno()
    present = ctypes.create_string_buffer(1)
    assert libc.mincore(first + page * 4096, 4096, present) == 0
    assert present.raw[0] & 1 == 0, page
def is_right(page): return ctypes.string_at(first + page * 4096, 4096) == bytes([page]) * 4096
def right(): return sum(map(is_right, written))
"""
)


@pytest.mark.usefixtures("swap")
def test_what_was_written_stays_when_it_is_in_swap(tmp_path: Path) -> None:
    """Such a page is not in memory, and can be read all the same."""
    source = tmp_path / "source"
    source.mkdir()
    save_file({"x": np.ones(1 << 18, "f4")}, source / "f")
    code = SWAPPED + "used(lambda: x[100].sum())\nprint(right())"
    with real.slow_fuse(source, tmp_path / "mount", fail_range=(100 * 4096, 102 * 4096)) as slow:
        assert output_of(code, slow.path / "f") == "6"


@pytest.mark.usefixtures("swap")
def test_and_so_where_all_of_the_storage_is_gone(tmp_path: Path) -> None:
    """The file is then taken to be truncated at the first page that fails."""
    code = (
        SWAPPED
        + """
print("ready", flush=True)
sys.stdin.readline()
used(lambda: x[100].sum())
print(right())
"""
    )
    with real.stoppable_bindfs(tmp_path) as (mount, daemon):
        save_file({"x": np.ones(1 << 18, "f4")}, tmp_path / "behind" / "f")
        pipe = subprocess.PIPE
        command = [sys.executable, "-c", code, str(mount / "f")]
        try:
            with subprocess.Popen(command, stdin=pipe, stdout=pipe, text=True) as process:
                assert process.stdout is not None
                assert process.stdout.readline() == "ready\n"
                Path("/proc/sys/vm/drop_caches").write_text("1")
                daemon.kill()
                daemon.wait()
                output, _ = process.communicate("\n", timeout=90)
        finally:
            subprocess.run(["umount", "-l", mount], check=True)
    assert (process.returncode, output) == (0, "6\n")


@pytest.fixture
def huge_pages(tmp_path: Path) -> Iterator[Path]:
    """A mount of hugetlbfs with a file of 8 huge pages on it."""
    if os.geteuid() != 0:
        real.missing("root, for huge pages")
    setting = Path("/proc/sys/vm/nr_hugepages")
    before = setting.read_text()
    setting.write_text("16")
    mount = tmp_path / "huge"
    mount.mkdir()
    done = subprocess.run(
        ["mount", "-t", "hugetlbfs", "none", mount], capture_output=True, text=True, check=False
    )
    try:
        if done.returncode != 0 or int(setting.read_text()) < 16:
            real.missing(f"a mount of hugetlbfs ({done.stderr.strip()})")
        with (mount / "f").open("wb") as file:
            file.truncate(8 * os.statvfs(mount).f_bsize)
        yield mount / "f"
    finally:
        subprocess.run(["umount", "-l", mount], check=False, capture_output=True)
        setting.write_text(before)


@pytest.mark.parametrize("mode", ["shared", "private"])
def test_a_page_of_hugetlbfs_is_replaced_whole(huge_pages: Path, mode: str) -> None:
    """The kernel does not split a huge page."""
    code = (
        USE
        + """
f = MappedFile(path, mode=sys.argv[2])
array = np.frombuffer(f, "u1")
huge = f.size // 8
assert array[:huge].sum() == 0
os.truncate(path, 4 * huge)
error = used(lambda: array[5 * huge + 12345])
print(error.offset == 4 * huge, int(array[-1]), int(array[4 * huge]))
"""
    )
    assert output_of(code, huge_pages, mode) == "True 0 0"


def test_and_so_in_a_writable_mapping(huge_pages: Path) -> None:
    code = (
        USE
        + """
import json, struct
size = os.path.getsize(path)
header = json.dumps({"x": {"dtype": "U8", "shape": [size - 4096], "data_offsets": [0, size - 4096]}}).encode()
head = struct.pack("<Q", 4096 - 8) + header.ljust(4096 - 8)
import mmap
with open(path, "r+b") as file, mmap.mmap(file.fileno(), size) as mapping:
    mapping[:len(head)] = head  # write(2) is not for hugetlbfs
x = safe_open(path, "np").get_tensor("x")
huge = size // 8
x[3 * huge] = 7
os.truncate(path, 4 * huge)
used(lambda: x[5 * huge])
x[6 * huge] = 1
print(int(x[3 * huge]), int(x[5 * huge]), int(x[6 * huge]))
"""
    )
    assert output_of(code, huge_pages) == "7 0 1"

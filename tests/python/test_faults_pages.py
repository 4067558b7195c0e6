"""The pages that are replaced when a file fails, and how long that takes."""

import fcntl
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import save_file

from support import real
from support.process import PROGRAMS, output_of


def test_a_large_file_that_was_cut_is_not_walked_page_by_page(tmp_path):
    """During the replacement, the thread holds the GIL and handles no signal."""
    strace = real.need_tool("strace")
    path = tmp_path / "sparse"
    with path.open("wb") as file:
        file.truncate(64 << 30)
    log = tmp_path / "log"
    code = PROGRAMS / "faults_pages/a_large_file_is_not_walked.py"
    wrapper = (strace, "-f", "-qq", "-e", "trace=mincore", "-o", str(log))
    assert output_of(code, path, wrapper=wrapper) == "4096 True"
    assert len(log.read_text().splitlines()) < 100


@pytest.fixture
def swap():
    """Provides 64 MiB of swap space on zram, where a page leaves memory as soon as it is written."""
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


@pytest.mark.usefixtures("swap")
def test_written_pages_in_swap_stay(tmp_path):
    """A page in swap is not in memory, but it can still be read."""
    source = tmp_path / "source"
    source.mkdir()
    save_file({"x": np.ones(1 << 18, "f4")}, source / "f")
    code = PROGRAMS / "faults_pages/what_was_written_stays_in_swap.py"
    with real.slow_fuse(source, tmp_path / "mount", fail_range=(100 * 4096, 102 * 4096)) as slow:
        assert output_of(code, slow.path / "f") == "6"


@pytest.mark.usefixtures("swap")
def test_written_pages_in_swap_stay_if_the_storage_is_gone(tmp_path):
    """The file then counts as truncated at the first page that fails."""
    code = PROGRAMS / "faults_pages/what_was_written_stays_where_the_storage_is_gone.py"
    with real.stoppable_bindfs(tmp_path) as (mount, daemon):
        save_file({"x": np.ones(1 << 18, "f4")}, tmp_path / "behind" / "f")
        pipe = subprocess.PIPE
        command = [sys.executable, str(code), str(mount / "f")]
        try:
            with subprocess.Popen(command, stdin=pipe, stdout=pipe, text=True) as process:
                assert process.stdout is not None
                assert process.stdout.readline() == "ready\n"
                daemon.kill()
                daemon.wait()
                output, _ = process.communicate("\n")
        finally:
            subprocess.run(["umount", "-l", mount], check=True)
    assert (process.returncode, output) == (0, "6\n")


@pytest.fixture
def huge_pages(tmp_path):
    """Mounts hugetlbfs with a file of 8 huge pages."""
    if os.geteuid() != 0:
        real.missing("root, for huge pages")
    mount = tmp_path / "huge"
    mount.mkdir()
    with Path("/proc/sys/vm/nr_hugepages").open("r+") as setting:
        # The pool belongs to the machine, where another run of the tests may need it, too.
        fcntl.flock(setting, fcntl.LOCK_EX)
        before = setting.read()
        write_setting(setting, "16")
        done = subprocess.run(
            ["mount", "-t", "hugetlbfs", "none", mount], capture_output=True, text=True, check=False
        )
        try:
            setting.seek(0)
            if done.returncode != 0 or int(setting.read()) < 16:
                real.missing(f"a mount of hugetlbfs ({done.stderr.strip()})")
            with (mount / "f").open("wb") as file:
                file.truncate(8 * os.statvfs(mount).f_bsize)
            yield mount / "f"
        finally:
            subprocess.run(["umount", "-l", mount], check=False, capture_output=True)
            write_setting(setting, before)


def write_setting(file, text):
    file.seek(0)
    file.write(text)
    file.flush()


@pytest.mark.parametrize("mode", ["shared", "private"])
def test_a_page_of_hugetlbfs_is_replaced_whole(huge_pages, mode):
    """The kernel does not split a huge page."""
    code = PROGRAMS / "faults_pages/a_huge_page_is_replaced_whole.py"
    assert output_of(code, huge_pages, mode) == "True 0 0"


def test_a_page_of_hugetlbfs_is_replaced_whole_in_a_writable_mapping(huge_pages):
    code = PROGRAMS / "faults_pages/a_huge_page_is_replaced_in_a_writable_mapping.py"
    assert output_of(code, huge_pages) == "7 0 1"

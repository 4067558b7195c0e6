"""Headers are cached by the identity of their file: reopening reads none, and rewriting invalidates it."""

import json
import mmap
import os
import re
import tempfile
import threading
import time
from pathlib import Path

import numpy as np
import pytest

from pagestream import open_checkpoint
from pagestream.errors import SafetensorError
from pagestream.safetensors import safe_open

from support import real
from support.process import PROGRAMS, output_of
from support.weight_files import entry, weight_file, write

pytestmark = pytest.mark.slow

HERE = PROGRAMS / "weights_header_cache"
# `state_cache.rs` keeps headers of files that stayed unchanged for more than two whole seconds.
SETTLED_SECONDS = 3.1
# Long metadata makes a read of the header visible in the process's count of read bytes.
LONG = "x" * (1 << 20)


def content(name, value):
    """Returns a file with one tensor and a one-letter name. All of these files have the same length."""
    header = {"__metadata__": {"long": LONG}, name: entry("U8", [64], 0, 64)}
    return weight_file(header, bytes([value]) * 64)


def bytes_read():
    with open("/proc/self/io") as counters:
        return int(re.search(r"rchar: (\d+)", counters.read())[1])


def found_in(path, **options):
    """Returns the name and the value in a file, and whether the open read its header."""
    before = bytes_read()
    with safe_open(path, "np", **options) as file:
        was_read = bytes_read() - before > len(LONG) // 2
        (name,) = file.keys()
        return name, int(file.get_tensor(name)[0]), was_read


def keep_time(change):
    """Wraps a change so that it restores the file's modification time."""

    def changed(path, new):
        before = path.stat()
        change(path, new)
        os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))
        assert (path.stat().st_size, path.stat().st_mtime_ns) == (before.st_size, before.st_mtime_ns)

    return changed


def overwrite(path, new):
    with open(path, "r+b") as file:
        file.write(new)


def replace(path, new):
    path.with_suffix(".new").write_bytes(new)
    path.with_suffix(".new").replace(path)


def write_through_mapping(path, new):
    with open(path, "r+b") as file, mmap.mmap(file.fileno(), 0) as mapping:
        mapping[:] = new


def cut_and_grow(path, new):
    os.truncate(path, 100)
    with open(path, "ab") as file:
        file.write(bytes(len(new) - 100))
    overwrite(path, new)


CHANGES = {
    "overwritten": overwrite,
    "overwritten, time restored": keep_time(overwrite),
    "replaced": replace,
    "replaced, time restored": keep_time(replace),
    "through a mapping": write_through_mapping,
    "through a mapping, time restored": keep_time(write_through_mapping),
    "cut and grown": cut_and_grow,
    "cut and grown, time restored": keep_time(cut_and_grow),
}
OTHERS = ("strictness", "bad", "threads")


@pytest.fixture(scope="module")
def settled(tmp_path_factory):
    """Makes settled files for each purpose. All of them except the bad one have been opened before."""
    folder = tmp_path_factory.mktemp("settled")
    paths = {name: folder / f"{number}.safetensors" for number, name in enumerate([*CHANGES, *OTHERS])}
    for path in paths.values():
        path.write_bytes(content("a", 1))
    paths["bad"].write_bytes(content("a", 1)[:-1] + b"\n\n")
    twice = '{"a":%s,"a":%s}' % ((json.dumps(entry("U8", [8], 0, 8)),) * 2)
    paths["strictness"].write_bytes(weight_file(twice, 8))
    good = [path for name, path in paths.items() if name in CHANGES or name == "threads"]
    # The first open records the file's state. The second open finds it unchanged. The third reads no header.
    for path in good:
        assert found_in(path) == ("a", 1, True)
    time.sleep(SETTLED_SECONDS)
    for path in good:
        found_in(path)
        assert found_in(path) == ("a", 1, False)
    return paths


@pytest.mark.parametrize("change", CHANGES)
def test_a_changed_file_is_read_anew(settled, change):
    path = settled[change]
    assert found_in(path) == ("a", 1, False)
    CHANGES[change](path, content("b", 2))
    assert found_in(path) == ("b", 2, True)
    with open_checkpoint(path) as weights:
        assert list(weights) == ["b"]


@pytest.mark.parametrize("place", [None, "/dev/shm"], ids=["disk", "memory"])
def test_a_file_written_during_its_open_is_read_anew(place):
    """The size is the same, and so is the time, within the resolution of the file system."""
    with tempfile.TemporaryDirectory(dir=place) as folder:
        path = Path(folder) / "racy.safetensors"
        path.write_bytes(content("a", 0))
        for turn in range(1, 30):
            name = "ab"[turn % 2]
            keep_time(overwrite)(path, content(name, turn))
            assert found_in(path)[:2] == (name, turn)
            assert found_in(path)[:2] == (name, turn)


def test_one_strictness_does_not_answer_for_the_other(settled):
    path = settled["strictness"]
    for _ in range(3):
        with safe_open(path, "np", strict=False) as file:
            assert file.keys() == ["a"]
        with pytest.raises(SafetensorError, match="duplicate"):
            safe_open(path, "np")
        with pytest.raises(SafetensorError, match="duplicate"):
            open_checkpoint(path)


def test_a_refusal_is_not_kept(settled):
    path = settled["bad"]
    for _ in range(2):
        with pytest.raises(SafetensorError, match="1 extra"):
            safe_open(path, "np")
    os.truncate(path, path.stat().st_size - 1)
    assert safe_open(path, "np").get_tensor("a")[-1] == ord("\n")


def test_threads_share_a_header(settled):
    path, found = settled["threads"], []

    def open_often():
        for _ in range(50):
            with safe_open(path, "np") as file:
                found.append((*file.keys(), int(file.get_tensor("a").sum()), len(file.metadata()["long"])))

    threads = [threading.Thread(target=open_often) for _ in range(8)]
    before = bytes_read()
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert bytes_read() - before < len(LONG)
    assert found == [("a", 64, len(LONG))] * 400


@pytest.mark.parametrize("way", ["np", pytest.param("pt", marks=pytest.mark.frameworks), "checkpoint"])
def test_reopening_queries_identity_and_size_alone(tmp_path, way):
    path, log = write(tmp_path / "model.safetensors", content("a", 7)), tmp_path / "log"
    wrapper = (real.need_tool("strace"), "-f", "-qq", "-o", str(log), "-P", path)
    wrapper += ("-e", "trace=open,openat,fstat,newfstatat,statx,pread64,read,fadvise64,access,faccessat2")
    assert output_of(HERE / "opened_again.py", path, way, SETTLED_SECONDS, wrapper=wrapper) == "448"
    _, again = log.read_text().split("access(", 1)
    again = again.split("\n", 1)[1]
    calls = re.findall(r"(\w+)\(", again)
    assert calls.count("open") + calls.count("openat") == 10
    assert {"pread64", "read", "fadvise64"}.isdisjoint(calls)
    # Each open makes one call for identity, and another that queries the server if the disk is remote. Each
    # open also makes one call for the size when it hands out memory, which does not query the server.
    sizes = again.count("AT_STATX_DONT_SYNC")
    assert sizes <= 10
    assert calls.count("fstat") + calls.count("newfstatat") + calls.count("statx") - sizes <= 20


def test_forks_while_headers_are_looked_up(tmp_path):
    for number in range(4):
        write(tmp_path / f"{number}.safetensors", content("a", number))
    assert output_of(HERE / "forked.py", tmp_path, SETTLED_SECONDS) == "50 children found all"


def test_cached_headers_have_a_limit_and_a_huge_one_is_dropped(tmp_path):
    """In KiB of anonymous memory: of 48 headers of 4 MiB, at most 64 MiB stay, and a header of 90 MB does
    not."""
    after_many, after_huge = map(int, output_of(HERE / "memory.py", tmp_path, SETTLED_SECONDS).split())
    assert 32 << 10 <= after_many <= 80 << 10
    assert after_huge <= after_many + (16 << 10)


def test_on_a_mount_only_the_state_is_requested_and_not_the_header(tmp_path):
    """The kernel may trust its cached attributes for a second while another client writes."""
    source = tmp_path / "source"
    source.mkdir()
    path = source / "model.safetensors"
    path.write_bytes(content("a", 1))
    with real.slow_fuse(source, tmp_path / "opened") as opened:
        found_in(opened.path / path.name)
        time.sleep(SETTLED_SECONDS)
        found_in(opened.path / path.name)
        for _ in range(20):
            safe_open(opened.path / path.name, "np").close()
        assert found_in(opened.path / path.name) == ("a", 1, False)
        keep_time(overwrite)(path, content("b", 2))
        assert found_in(opened.path / path.name) == ("b", 2, True)
    # The limit covers three headers, and a page of the tensor for each of four opens.
    assert opened.counts["read_bytes"] <= 3 * (len(LONG) + 4096) + 4 * (256 << 10)


@pytest.mark.parametrize("framework", ["np", pytest.param("pt", marks=pytest.mark.frameworks)])
def test_a_file_reopened_for_each_tensor_gives_each_tensor(tmp_path, framework):
    names = [f"t{number}" for number in range(300)]
    header = {name: entry("F32", [4], 16 * number, 16 * number + 16) for number, name in enumerate(names)}
    data = np.arange(1200, dtype="<f4")
    path = write(tmp_path / "model.safetensors", weight_file(header, data.tobytes()))
    for turn in range(2):
        for number, name in enumerate(names):
            with safe_open(path, framework) as file:
                assert file.get_tensor(name).tolist() == data[4 * number : 4 * number + 4].tolist()
        if turn == 0:
            time.sleep(SETTLED_SECONDS)

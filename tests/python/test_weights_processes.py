"""Plain processes of one node that load one checkpoint from a slow mount at the same time.

Where the mount has a page cache, that is what they share: a page that one of them is reading is locked,
others wait for it, and the kernel completes the read whatever becomes of the process.
"""

import contextlib
import hashlib
import signal

import numpy as np
import pytest
import safetensors.numpy

from pagestream import MappedFile, open_checkpoint

from support import real
from support.process import PROGRAMS
from support.together import begin, last_lines, processes

MIB = 1 << 20
SHARDS, TENSORS, TENSOR_BYTES = 2, 12, 2 * MIB
WHOLE = SHARDS * TENSORS * TENSOR_BYTES
# Headers, and what the kernel reads ahead of them.
LITTLE = MIB


@pytest.fixture(scope="module")
def source(tmp_path_factory):
    folder = tmp_path_factory.mktemp("processes")
    for shard in range(SHARDS):
        tensors = {
            f"t{number:02}": np.random.default_rng(number).integers(0, 256, TENSOR_BYTES, dtype=np.uint8)
            for number in range(shard * TENSORS, (shard + 1) * TENSORS)
        }
        safetensors.numpy.save_file(tensors, folder / f"model-{shard}.safetensors")
    return folder


@pytest.fixture(scope="module")
def digest(source):
    with open_checkpoint(source) as weights:
        found = hashlib.sha256()
        for name in sorted(weights):
            found.update(name.encode() + weights[name].tobytes())
    return found.hexdigest()


@contextlib.contextmanager
def mounted(source, tmp_path, **options):
    for path in source.iterdir():
        with MappedFile(path) as file:
            file.evict()
    with real.slow_fuse(source, tmp_path / "slow", delay_ms=10, **options) as slow:
        yield slow


def loading(way, folder, count):
    """Programs that have the files open, or are about to open them."""
    return processes(PROGRAMS / "weights_processes/load.py", [(way, folder)] * count)


# Each opening of a file drops its pages, unless the daemon keeps them. A stream opens all files at the start.
WAYS = [("stream", False), ("stream", True), ("safe_open", True)]
every_way = pytest.mark.parametrize(("way", "keeps"), WAYS, ids=["stream", "stream, kept", "safe_open, kept"])


@every_way
@pytest.mark.parametrize("count", [2, 6])
def test_processes_that_load_together_read_each_byte_once(source, digest, tmp_path, way, keeps, count):
    with (
        mounted(source, tmp_path, keep_cache=keeps) as slow,
        loading(way, slow.path, count) as found,
    ):
        begin(found)
        assert [process.stdout.readline() for process in found] == ["begun\n"] * count
        assert last_lines(found) == [digest] * count
    assert WHOLE <= slow.counts["read_bytes"] <= WHOLE + LITTLE


@every_way
@pytest.mark.parametrize("stop", [signal.SIGKILL, signal.SIGSTOP])
def test_one_that_dies_or_stalls_keeps_none_of_the_others(source, digest, tmp_path, way, keeps, stop):
    with (
        mounted(source, tmp_path, keep_cache=keeps) as slow,
        loading(way, slow.path, 3) as found,
    ):
        begin(found)
        assert found[0].stdout.readline() == "begun\n"
        found[0].send_signal(stop)
        assert [process.stdout.readline() for process in found[1:]] == ["begun\n"] * 2
        assert last_lines(found[1:]) == [digest] * 2
        if stop == signal.SIGSTOP:
            assert found[0].poll() is None
            found[0].send_signal(signal.SIGCONT)
            assert last_lines(found[:1]) == [digest]
    assert WHOLE <= slow.counts["read_bytes"] <= WHOLE + LITTLE


def test_without_a_page_cache_each_process_reads_for_itself_and_it_is_said(source, digest, tmp_path):
    with mounted(source, tmp_path, direct_io=True) as slow:
        with loading("stream", slow.path, 2) as found:
            begin(found)
            assert [process.stdout.readline() for process in found] == ["begun\n"] * 2
            assert last_lines(found) == [digest] * 2
        with open_checkpoint(slow.path) as weights:
            assert "reads bypass the page cache: each process reads for itself" in weights.explain()
    assert slow.counts["read_bytes"] >= 2 * WHOLE

"""Files rewritten or truncated in place while in use, where nothing notifies the kernel."""

import os
import time
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
import safetensors.numpy

from pagestream import MappedFile, open_checkpoint
from pagestream.errors import FileChangedError, MappedReadError
from pagestream.safetensors import safe_open

from support import real

MIB = 1 << 20
SHAPE = (24, MIB)


@pytest.fixture
def folder(tmp_path):
    """Makes a folder with a file of one large tensor of ones."""
    folder = tmp_path / "source"
    folder.mkdir()
    safetensors.numpy.save_file({"w": np.ones(SHAPE, "u1")}, folder / "model.safetensors")
    with MappedFile(folder / "model.safetensors") as file:
        file.evict()
    return folder


def rewrite(folder):
    with open(folder / "model.safetensors", "r+b") as file:
        file.write(safetensors.numpy.save({"w": np.full(SHAPE, 2, "u1")}))


def copied(path):
    with safe_open(path, "np", copy=True, ahead=False) as file:
        return file.get_tensor("w")


def copied_without_a_mapping(path):
    with safe_open(path, "np", mmap_mode="read", ahead=False) as file:
        return file.get_tensor("w")


def copied_in_part(path):
    with safe_open(path, "np", ahead=False) as file:
        return file.get_slice("w")[:, 1:]


def read_by_checkpoint(path):
    with open_checkpoint(path) as weights:
        return weights.read("w")


def mount_of(folder, **options):
    """Makes a mount whose attributes the kernel caches for a minute."""
    return real.slow_fuse(folder, folder.parent / "slow", attributes_hold_ms=60_000, **options)


def name_of(way):
    return way.__name__


every_way = pytest.mark.parametrize(
    "way", [copied, copied_without_a_mapping, copied_in_part, read_by_checkpoint], ids=name_of
)


@every_way
def test_a_copy_is_of_one_state_of_its_file(folder, way):
    with mount_of(folder) as slow, ThreadPoolExecutor(1) as pool:
        slow.gate.hold(12 * MIB)

        def rewrite_in_the_middle():
            slow.gate.wait_for(1)
            rewrite(folder)
            slow.gate.open()

        rewritten = pool.submit(rewrite_in_the_middle)
        with pytest.raises(FileChangedError, match="written to"):
            print(np.unique(way(slow.path / "model.safetensors")))
        rewritten.result()


@every_way
def test_the_server_is_asked_once_for_the_state_of_a_copy(folder, way):
    requests = []
    for use in (lambda path: safe_open(path, "np", ahead=False).close(), way):
        with mount_of(folder) as slow:
            use(slow.path / "model.safetensors")
        requests.append(slow.counts["attribute_requests"])
    assert requests[1] - requests[0] == 1


def tensor_of(file):
    return file.get_tensor("w")


def slice_of(file):
    return file.get_slice("w")[...]


@pytest.mark.parametrize(
    ("framework", "get"),
    [("np", tensor_of), ("np", slice_of), pytest.param("pt", slice_of, marks=pytest.mark.frameworks)],
    ids=["tensor", "slice", "slice, torch"],
)
def test_no_view_shows_zeros_for_what_was_cut(folder, framework, get):
    """The last page has zeros beyond the new end, without a signal, and only stat(2) makes the kernel ask."""
    size_bytes = (folder / "model.safetensors").stat().st_size
    cut_bytes = size_bytes // 2 // 4096 * 4096 + 100
    behind_the_cut = cut_bytes + 10 - size_bytes
    with real.slow_fuse(folder, folder.parent / "slow", attributes_hold_ms=0) as slow:
        file = safe_open(slow.path / "model.safetensors", framework, ahead=False)
        assert int(get(file)[0, 0]) == 1
        os.truncate(folder / "model.safetensors", cut_bytes)
        time.sleep(1.1)  # the kernel asks at most about once a second
        with pytest.raises((FileChangedError, MappedReadError), match="truncated"):
            print(get(file).reshape(-1)[behind_the_cut])
        file.close()

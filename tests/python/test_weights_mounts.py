"""Weights on bindfs and sshfs, with and without a page cache: streams, read-ahead, files that change."""

import contextlib
import functools
import os
import shutil
import time

import numpy as np
import pytest
import safetensors.numpy

from pagestream import MappedFile, open_checkpoint
from pagestream.errors import FileChangedError, MappedReadError
from pagestream.safetensors import safe_open
from pagestream.safetensors.numpy import load_file

from support import real

pytestmark = pytest.mark.slow

MIB = 1 << 20
# The two files are large enough to be read ahead.
TENSORS = 20
STRATEGIES = ["auto", "mapped", "pread"]
# By default sshfs caches the attributes of a file for 20 s.
ASKING = "dir_cache=no"
MOUNTS = {
    "bindfs": (real.bindfs,),
    "bindfs, direct_io": (real.bindfs, "direct_io"),
    "sshfs": (real.sshfs, ASKING),
    "sshfs, direct_io": (real.sshfs, ASKING, "direct_io"),
}
every_mount = pytest.mark.parametrize("kind", MOUNTS)


@functools.cache
def tensor(number, salt=0):
    made = np.random.default_rng([number, salt]).integers(0, 256, MIB, dtype=np.uint8)
    made.flags.writeable = False
    return made


@pytest.fixture(scope="module", autouse=True)
def _tensors():
    yield
    tensor.cache_clear()


@pytest.fixture(scope="module")
def shards(tmp_path_factory):
    """Makes a folder with the shards of the checkpoint, and an alternative second shard."""
    folder = tmp_path_factory.mktemp("shards")
    write_shard(folder / "model-0.safetensors", 0)
    write_shard(folder / "model-1.safetensors", 1)
    write_shard(folder / "other-1.safetensors", 1, salt=1)
    yield folder
    shutil.rmtree(folder)


def write_shard(path, part, salt=0):
    numbers = range(part * TENSORS, (part + 1) * TENSORS)
    safetensors.numpy.save_file({f"t{number:02}": tensor(number, salt) for number in numbers}, path)


def is_right(name, array):
    return np.array_equal(array, tensor(int(name[1:])))


def write_checkpoint(shards, folder):
    """Writes a checkpoint that is not in the page cache."""
    folder.mkdir()
    for path in shards.glob("model-*"):
        # SFTP stores whole seconds, and cannot distinguish two writes within one second.
        os.utime(shutil.copyfile(path, folder / path.name), (1.7e9, 1.7e9))
        with MappedFile(folder / path.name) as file:
            file.evict()


@contextlib.contextmanager
def mounted(kind, source, point):
    mount_by, *options = MOUNTS[kind]
    with mount_by(source, point, *options) as mount:
        yield mount


@contextlib.contextmanager
def mounted_checkpoint(kind, shards, tmp_path):
    """Yields the folder of a checkpoint on a mount, and the folder behind the mount."""
    source = tmp_path / "source"
    write_checkpoint(shards, source)
    with mounted(kind, source, tmp_path / "mount") as mount:
        yield mount, source


@every_mount
def test_streams_and_their_parts_are_bit_for_bit(shards, tmp_path, kind):
    with mounted_checkpoint(kind, shards, tmp_path) as (mount, _), open_checkpoint(mount) as weights:
        assert weights.mode == ("private" if "direct_io" in kind else "shared")
        for strategy in STRATEGIES:
            found = dict(weights.stream(strategy=strategy, memory_bytes=4 * MIB))
            assert list(found) == list(weights)
            assert all(is_right(name, array) for name, array in found.items())
            parts = dict(weights.stream({"t03": np.s_[1000:5000:3], "t25": None}, strategy=strategy))
            assert np.array_equal(parts["t03"], tensor(3)[1000:5000:3])
            assert is_right("t25", parts["t25"])
        del found, parts


@every_mount
@pytest.mark.frameworks
@pytest.mark.parametrize("ahead", [None, 3 * MIB, False])
def test_tensors_that_are_read_ahead_are_bit_for_bit(shards, tmp_path, kind, ahead):
    with mounted_checkpoint(kind, shards, tmp_path) as (mount, _):
        first, second = sorted(mount.iterdir())
        for framework in ("np", "pt"):
            with safe_open(first, framework, ahead=ahead) as file:
                for name in file.keys():  # noqa: SIM118 - upstream's has no iterator
                    assert is_right(name, np.asarray(file.get_tensor(name)))
        for mode in ("auto", "read"):
            found = load_file(second, mmap_mode=mode)
            assert len(found) == TENSORS
            assert all(is_right(name, array) for name, array in found.items())
        with open_checkpoint(mount, ahead=ahead) as weights:
            assert all(is_right(name, array) for name, array in weights.items())
        del found


def cut(path, other):
    os.truncate(path, 3 * MIB)


def replace(path, other):
    shutil.copyfile(other, path.with_suffix(".new"))
    path.with_suffix(".new").replace(path)


def overwrite(path, other):
    with open(path, "r+b") as file:
        file.write(other.read_bytes())


def unlink(path, other):
    path.unlink()


CHANGES = (cut, replace, overwrite, unlink)


@contextlib.contextmanager
def mounted_to_change(kind, shards, tmp_path):
    """Yields one mount of a checkpoint per change, and a function that makes all changes behind them."""
    source = tmp_path / "source"
    source.mkdir()
    for change in CHANGES:
        write_checkpoint(shards, source / change.__name__)

    def change_all():
        for change in CHANGES:
            change(source / change.__name__ / "model-1.safetensors", shards / "other-1.safetensors")
        # The daemons let the kernel cache attributes and names for a second. A longer wait would change
        # nothing.
        time.sleep(1.1)

    with mounted(kind, source, tmp_path / "mount") as mount:
        yield mount, change_all


def use_all(weights, stream, arrays):
    for name, array in stream:
        arrays[name] = array.copy()
    weights.check()


@every_mount
def test_a_file_that_changes_behind_the_mount_is_an_error_and_no_wrong_bytes(shards, tmp_path, kind):
    with mounted_to_change(kind, shards, tmp_path) as (mount, change_all):
        opened = [
            (open_checkpoint(mount / change.__name__), strategy)
            for change in CHANGES
            for strategy in ("auto", "pread")
        ]
        streams = [
            (weights, weights.stream(strategy=strategy, memory_bytes=2 * MIB)) for weights, strategy in opened
        ]
        found = [dict([next(stream)]) for _, stream in streams]
        change_all()
        for (weights, stream), arrays in zip(streams, found, strict=True):
            with pytest.raises((FileChangedError, MappedReadError), match="model-1") as caught:
                use_all(weights, stream, arrays)
            assert caught.value.filename is None or caught.value.filename.startswith(str(mount))
            assert all(is_right(name, array) for name, array in arrays.items())
            weights.close()
        del stream, streams, opened, weights


@every_mount
def test_a_file_that_changes_behind_the_mount_under_a_lead_is_an_error(shards, tmp_path, kind):
    """A view shows some pages from before the change and some from after it."""
    names = [f"t{number:02}" for number in range(TENSORS, 2 * TENSORS)]

    def take(weights, names, found):
        for name in names:
            found[name] = weights[name].copy()
        weights.check()

    with mounted_to_change(kind, shards, tmp_path) as (mount, change_all), contextlib.ExitStack() as ends:
        opened = [
            (change, ends.enter_context(open_checkpoint(mount / change.__name__)), {}) for change in CHANGES
        ]
        for _, weights, found in opened:
            take(weights, names[:2], found)
        change_all()
        for change, weights, found in opened:
            with pytest.raises((FileChangedError, MappedReadError), match="model-1"):
                take(weights, names[2:], found)
            if change is cut:
                found.popitem()  # may be zeros that precede the error of the fault
            assert len(found) >= 1, change
            for name, array in found.items():
                old, new = (tensor(int(name[1:]), salt) for salt in (0, 1))
                if "direct_io" in kind:
                    assert np.array_equal(array, old) or np.array_equal(array, new), change
                assert np.all((array == old) | (array == new)), change


@every_mount
def test_a_file_that_was_rewritten_behind_the_mount_is_opened_as_it_is_now(shards, tmp_path, kind):
    with mounted_checkpoint(kind, shards, tmp_path) as (mount, source):
        path = mount / "model-1.safetensors"
        with safe_open(path, "np") as file:
            assert is_right("t20", file.get_tensor("t20"))
        overwrite(source / path.name, shards / "other-1.safetensors")
        if "sshfs" in kind:
            time.sleep(1.1)
        with safe_open(path, "np") as file:
            assert np.array_equal(file.get_tensor("t20"), tensor(20, salt=1))
            file.check()


def test_files_of_two_mounts_that_look_the_same_are_told_apart(tmp_path):
    """SFTP reuses device and inode numbers, has times in whole seconds, and no change time."""
    for part in range(3):
        source = tmp_path / f"source{part}"
        source.mkdir()
        write_shard(source / "model.safetensors", part)
        os.utime(source / "model.safetensors", (1.7e9, 1.7e9))
        with real.sshfs(source, tmp_path / f"mount{part}") as mount:
            for _ in range(2):
                with safe_open(mount / "model.safetensors", "np") as file:
                    name = f"t{part * TENSORS + 7:02}"
                    assert is_right(name, file.get_tensor(name).copy())

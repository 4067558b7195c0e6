"""Saving over a file: by rename with every upstream version, and by a copy where a rename is impossible."""

from __future__ import annotations

import contextlib
import os
import signal
import stat
import subprocess

import numpy as np
import pytest
import safetensors
import safetensors.numpy
import safetensors.torch
import torch

import pagestream.safetensors as ours
import pagestream.safetensors.numpy
import pagestream.safetensors.torch  # noqa: F401 - as `ours.torch`
from pagestream.safetensors import SafetensorError

from support import real
from support.mappings import mappings_of
from support.process import PROGRAMS, output_of

FIRST = np.arange(1 << 16, dtype="f4")


def save_in_place(tensors, filename, metadata=None):
    """Writes in place, as upstream before 0.8 does."""
    with open(filename, "wb") as file:
        file.write(safetensors.serialize(tensors, metadata))


def write_in_place(monkeypatch, writer=save_in_place):
    for module in (safetensors, safetensors.numpy, safetensors.torch):
        monkeypatch.setattr(module, "serialize_file", writer)


@pytest.fixture(params=["installed", "in place"])
def _upstream(request, monkeypatch):
    """Parametrises upstream's writer: the installed version, and the behaviour before 0.8."""
    if request.param == "in place":
        write_in_place(monkeypatch)


both_writers = pytest.mark.usefixtures("_upstream")


def save_model(tensors, path):
    model = torch.nn.Module()
    model.register_buffer("a", tensors["a"])
    ours.torch.save_model(model, path)


def save_specs(tensors, path):
    array = tensors["a"]
    fields = {"shape": array.shape, "data_ptr": array.ctypes.data, "data_len": array.nbytes}
    ours.serialize_file({"a": ours.TensorSpec(dtype="float32", **fields)}, path)


PARTS = {
    "numpy": (ours.numpy.load_file, ours.numpy.save_file),
    "torch": (ours.torch.load_file, ours.torch.save_file),
    "model": (ours.torch.load_file, save_model),
    "specs": (ours.numpy.load_file, save_specs),
}


@pytest.fixture
def path(tmp_path):
    """Returns a file with the tensor "a", in its own folder."""
    (tmp_path / "folder").mkdir()
    path = tmp_path / "folder" / "model.safetensors"
    ours.numpy.save_file({"a": FIRST}, path)
    return path


def content(path):
    return safetensors.numpy.load_file(path)["a"]


def is_alone(path):
    """Returns whether the folder of a file contains no temporary file."""
    return os.listdir(path.parent) == [path.name]


@both_writers
@pytest.mark.parametrize(("load", "save"), PARTS.values(), ids=PARTS)
def test_views_of_a_file_are_saved_over_it_and_stay(path, load, save):
    loaded = load(path)
    save(loaded, path)
    np.testing.assert_array_equal(content(path), FIRST)
    again = load(path)
    again["a"] += 1
    save(again, path)
    np.testing.assert_array_equal(np.asarray(loaded["a"]), FIRST)
    np.testing.assert_array_equal(np.asarray(again["a"]), FIRST + 1)
    np.testing.assert_array_equal(content(path), FIRST + 1)
    assert is_alone(path)


@both_writers
def test_a_file_keeps_its_owner_mode_and_extended_attributes(path):
    if os.geteuid() != 0:
        real.missing("root, to give a file away")
    os.chown(path, 65534, 65533)
    os.chmod(path, 0o640)
    os.setxattr(path, "user.origin", b"elsewhere")
    os.setxattr(path, "system.posix_acl_access", access_list(user=1234))
    before = os.stat(path)
    ours.numpy.save_file({"a": FIRST[1:]}, path)
    after = os.stat(path)
    assert after.st_ino != before.st_ino
    assert (after.st_uid, after.st_gid, after.st_mode) == (65534, 65533, before.st_mode)
    assert os.getxattr(path, "user.origin") == b"elsewhere"
    assert os.getxattr(path, "system.posix_acl_access") == access_list(user=1234)


@both_writers
def test_the_folders_default_access_list_is_for_new_files_alone(path):
    os.chmod(path, 0o600)
    os.setxattr(path.parent, "system.posix_acl_default", access_list(user=1234))
    ours.numpy.save_file({"a": FIRST}, path)
    assert os.listxattr(path) == []
    assert stat.S_IMODE(os.stat(path).st_mode) == 0o600
    ours.numpy.save_file({"a": FIRST}, path.parent / "new")
    (path.parent / "opened").touch()
    for name in ("new", "opened"):
        assert os.listxattr(path.parent / name) == ["system.posix_acl_access"]
    assert os.stat(path.parent / "new").st_mode == os.stat(path.parent / "opened").st_mode


def access_list(user):
    """Returns an access list that grants read access to one user (acl(5), in the kernel's format)."""
    anybody = 0xFFFFFFFF
    entries = [(1, 6, anybody), (2, 4, user), (4, 0, anybody), (0x10, 4, anybody), (0x20, 0, anybody)]
    parts = [
        tag.to_bytes(2, "little") + rights.to_bytes(2, "little") + number.to_bytes(4, "little")
        for tag, rights, number in entries
    ]
    return (2).to_bytes(4, "little") + b"".join(parts)


def test_nobody_else_can_open_the_new_content_while_it_is_written(path, monkeypatch):
    os.chmod(path, 0o600)
    modes = []

    def save(tensors, filename, metadata=None):
        save_in_place(tensors, filename, metadata)
        modes.append(stat.S_IMODE(os.stat(filename).st_mode))

    write_in_place(monkeypatch, save)
    ours.numpy.save_file({"a": FIRST}, path)
    assert modes == [0o600]


@both_writers
def test_a_link_stays_and_its_target_is_replaced(path, tmp_path):
    os.symlink("folder/model.safetensors", tmp_path / "link")
    loaded = ours.numpy.load_file(tmp_path / "link")
    ours.numpy.save_file({"a": loaded["a"] + 1}, tmp_path / "link")
    assert os.readlink(tmp_path / "link") == "folder/model.safetensors"
    np.testing.assert_array_equal(loaded["a"], FIRST)
    np.testing.assert_array_equal(content(path), FIRST + 1)


def interrupted(tensors, filename, metadata=None):
    with open(filename, "wb") as file:
        file.write(b"half")
    os.kill(os.getpid(), signal.SIGINT)


def refused(tensors, filename, metadata=None):
    with open(filename, "wb") as file:
        file.write(b"half")
    raise safetensors.SafetensorError


@pytest.mark.parametrize(
    ("writer", "error"),
    [(interrupted, KeyboardInterrupt), (refused, SafetensorError)],
    ids=["signal", "error"],
)
def test_an_exception_leaves_the_old_file_alone(path, monkeypatch, writer, error):
    write_in_place(monkeypatch, writer)
    with pytest.raises(error):
        ours.numpy.save_file({"a": FIRST + 1}, path)
    np.testing.assert_array_equal(content(path), FIRST)
    assert is_alone(path)


@contextlib.contextmanager
def mount(point, *arguments):
    if os.geteuid() != 0:
        real.missing("root, to mount")
    subprocess.run(["mount", *arguments, point], check=True)
    try:
        yield point
    finally:
        subprocess.run(["umount", "-l", point], check=True)


@both_writers
def test_a_full_disk_leaves_the_old_file_whole(tmp_path):
    (tmp_path / "small").mkdir()
    with mount(tmp_path / "small", "-t", "tmpfs", "-o", "size=400k", "none") as small:
        ours.numpy.save_file({"a": FIRST}, small / "a")
        loaded = ours.numpy.load_file(small / "a")
        with pytest.raises(SafetensorError, match="No space left"):
            ours.numpy.save_file(loaded, small / "a")
        np.testing.assert_array_equal(content(small / "a"), FIRST)
        np.testing.assert_array_equal(loaded["a"], FIRST)
        assert is_alone(small / "a")


@pytest.fixture(params=["mount point", "read-only folder"])
def mounted_file(request, path, tmp_path):
    """Returns a file that can be written, but not replaced by a rename."""
    folder = tmp_path / "outside"
    folder.mkdir()
    target = folder / "model.safetensors"
    target.touch()
    with contextlib.ExitStack() as mounts:
        if request.param == "read-only folder":
            mounts.enter_context(mount(folder, "--bind", folder))
        mounts.enter_context(mount(target, "--bind", path))
        if request.param == "read-only folder":
            subprocess.run(["mount", "-o", "remount,bind,ro", folder], check=True)
        yield target


@both_writers
@pytest.mark.parametrize("count", [10, 1 << 17], ids=["shorter", "longer"])
def test_a_file_that_cannot_be_replaced_is_overwritten(mounted_file, path, count):
    before = os.stat(path)
    new = np.arange(count, dtype="f4")
    ours.numpy.save_file({"a": new}, mounted_file)
    np.testing.assert_array_equal(content(path), new)
    assert (os.stat(path).st_ino, os.stat(path).st_mode) == (before.st_ino, before.st_mode)
    assert is_alone(mounted_file)


@both_writers
@pytest.mark.parametrize("opened", ["mounted_file", "path"])
def test_a_file_that_cannot_be_replaced_is_not_overwritten_under_views(
    mounted_file, path, opened, monkeypatch
):
    monkeypatch.setattr("pagestream.safetensors._saving._UNMAP_SECONDS", 0)
    loaded = ours.numpy.load_file({"mounted_file": mounted_file, "path": path}[opened])
    with pytest.raises(SafetensorError, match=r"outside/model.*cannot be replaced.*copy=True"):
        ours.numpy.save_file({"a": FIRST + 1}, mounted_file)
    np.testing.assert_array_equal(loaded["a"], FIRST)
    np.testing.assert_array_equal(content(path), FIRST)
    assert is_alone(mounted_file)
    copied = ours.numpy.load_file(mounted_file, copy=True)
    del loaded
    assert mappings_of(mounted_file) == []
    ours.numpy.save_file({"a": copied["a"] + 1}, mounted_file)
    np.testing.assert_array_equal(copied["a"], FIRST)
    np.testing.assert_array_equal(content(path), FIRST + 1)


def test_saving_waits_for_the_thread_that_unmaps_dropped_tensors(mounted_file, path, monkeypatch):
    answers = [True, True, False]
    monkeypatch.setattr("pagestream.safetensors._saving._UNMAP_SECONDS", 60)
    monkeypatch.setattr("pagestream.safetensors._saving._is_mapped", lambda _: answers.pop(0))
    ours.numpy.save_file({"a": FIRST + 1}, mounted_file)
    assert answers == []
    np.testing.assert_array_equal(content(path), FIRST + 1)


def test_a_full_disk_leaves_a_file_that_cannot_be_replaced_whole(tmp_path):
    for name in ("small", "outside"):
        (tmp_path / name).mkdir()
    target = tmp_path / "outside" / "model.safetensors"
    target.touch()
    with mount(tmp_path / "small", "-t", "tmpfs", "-o", "size=400k", "none") as small:
        ours.numpy.save_file({"a": FIRST}, small / "a")
        with mount(target, "--bind", small / "a"):
            with pytest.raises(SafetensorError, match=r"outside/model.*No space left"):
                ours.numpy.save_file({"a": np.zeros(1 << 18, "f4")}, target)
            np.testing.assert_array_equal(content(target), FIRST)
            assert is_alone(target)


def test_another_user_overwrites_a_file_in_a_folder_that_takes_no_new_ones():
    if os.geteuid() != 0:
        real.missing("root, to become another user")
    assert output_of(PROGRAMS / "safetensors_saving/another_user_overwrites_a_file.py") == "refused, saved"

"""Holes in safetensors files: which warnings appear, where, and which files get none."""

import ctypes
import errno
import json
import mmap
import os
import tempfile
import threading
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import safetensors.numpy
from typer.testing import CliRunner

from pagestream import open_checkpoint
from pagestream.cli._app import app
from pagestream.weights import holes
from pagestream.weights.checkpoint import native_files

from support import real

KIB = 1 << 10
PAGE_BYTES = mmap.PAGESIZE
TENSORS, TENSOR_BYTES = 10, 64 * KIB
# The stored bytes of a download that stopped in t3.
STORED_BYTES = 224 * KIB
KEEP_SIZE, PUNCH_HOLE = 1, 2


@pytest.fixture(params=["disk", "memory"])
def folder(request, tmp_path):
    if request.param == "disk":
        yield tmp_path
        return
    if real.file_system_type(Path("/dev/shm")) != "tmpfs":
        real.missing("a tmpfs on /dev/shm")
    with tempfile.TemporaryDirectory(prefix="pagestream-", dir="/dev/shm") as folder:
        yield Path(folder)


def write_whole(path, first=1):
    """Writes a file with the tensors t0 to t9. The bytes of `t<n>` equal n + `first`."""
    tensors = {f"t{number}": np.full(TENSOR_BYTES, number + first, "u1") for number in range(TENSORS)}
    safetensors.numpy.save_file(tensors, path)
    return path


def punch(path, start, stop):
    libc = ctypes.CDLL(None, use_errno=True)
    libc.fallocate.argtypes = (ctypes.c_int, ctypes.c_int, ctypes.c_long, ctypes.c_long)
    with open(path, "r+b") as file:
        failed = libc.fallocate(file.fileno(), KEEP_SIZE | PUNCH_HOLE, start, stop - start)
    if failed:
        real.missing(f"a file system that punches holes ({os.strerror(ctypes.get_errno())})")


def stop_after_truncate(path):
    size = path.stat().st_size
    os.truncate(path, STORED_BYTES)
    os.truncate(path, size)


def stop_after_fallocate(path):
    content = path.read_bytes()
    with open(path, "wb") as file:
        os.posix_fallocate(file.fileno(), 0, len(content))
        file.write(content[:STORED_BYTES])


def punch_the_rest(path):
    punch(path, STORED_BYTES, -(-path.stat().st_size // PAGE_BYTES) * PAGE_BYTES)


MAKERS = (stop_after_truncate, stop_after_fallocate, punch_the_rest)


@pytest.fixture
def holed(tmp_path):
    path = write_whole(tmp_path / "model.safetensors")
    stop_after_truncate(path)
    return path


def warnings(path):
    with open_checkpoint(path) as weights:
        return weights.warnings


# Files with holes


@pytest.mark.parametrize("make", MAKERS)
def test_a_download_that_stopped_is_a_warning(folder, make):
    path = write_whole(folder / "model.safetensors")
    make(path)
    (warning,) = warnings(path)
    assert warning == (
        f"{path}: 417 KiB in 1 hole read as zeros, the first at byte 229,376, in 7 tensors ('t3', 't4', "
        "'t5', ...). Download the file again if its download stopped early. Zeros that are stored sparsely "
        "are holes, too: if the file has checksums, pagestream verify compares it"
    )


def test_a_file_with_holes_loads(holed):
    with open_checkpoint(holed) as weights:
        assert weights["t0"].all()
        assert not weights["t9"].any()


def test_only_files_with_holes_have_a_warning(tmp_path):
    for number in range(3):
        path = tmp_path / f"model-{number}.safetensors"
        safetensors.numpy.save_file({f"{number}.t": np.ones(TENSOR_BYTES, "u1")}, path)
    path = tmp_path / "model-1.safetensors"
    punch(path, 4 * PAGE_BYTES, 5 * PAGE_BYTES)
    punch(path, 7 * PAGE_BYTES, 9 * PAGE_BYTES)
    (warning,) = warnings(tmp_path)
    assert warning.startswith(
        f"{path}: {3 * PAGE_BYTES >> 10} KiB in 2 holes read as zeros, the first at byte {4 * PAGE_BYTES:,}, "
        "in 1 tensor ('1.t'). "
    )


def test_many_holes_are_counted_up_to_a_limit(tmp_path):
    path = tmp_path / "model.safetensors"
    safetensors.numpy.save_file({"t": np.ones(200 * PAGE_BYTES, "u1")}, path)
    for page in range(1, 140, 2):
        punch(path, page * PAGE_BYTES, (page + 1) * PAGE_BYTES)
    (warning,) = warnings(path)
    assert f": at least {64 * PAGE_BYTES >> 10} KiB in at least 64 holes read as zeros" in warning


# Files without findings


def test_a_whole_file_has_no_warning(folder):
    assert warnings(write_whole(folder / "model.safetensors")) == []


def test_stored_zeros_are_not_a_hole(folder):
    path = folder / "model.safetensors"
    safetensors.numpy.save_file({"zeros": np.zeros(TENSOR_BYTES, "u1")}, path)
    assert warnings(path) == []


def test_files_without_bytes_have_no_warning(tmp_path):
    safetensors.numpy.save_file({"empty": np.zeros(0)}, tmp_path / "model-1.safetensors")
    safetensors.numpy.save_file({}, tmp_path / "model-2.safetensors")
    assert warnings(tmp_path) == []


@pytest.mark.parametrize(("hole_bytes", "found"), [(PAGE_BYTES - 1, 0), (PAGE_BYTES, 1)])
def test_the_last_bytes_may_be_stored_elsewhere(tmp_path, hole_bytes, found):
    path = tmp_path / "model.safetensors"
    # The header and the first bytes fill one page. The last bytes are in the next page.
    data_start = 8 + int.from_bytes(safetensors.numpy.save({"t": np.ones(PAGE_BYTES, "u1")})[:8], "little")
    safetensors.numpy.save_file({"t": np.ones(PAGE_BYTES - data_start + hole_bytes, "u1")}, path)
    assert path.stat().st_size == PAGE_BYTES + hole_bytes
    os.truncate(path, PAGE_BYTES)
    os.truncate(path, PAGE_BYTES + hole_bytes)
    assert len(warnings(path)) == found


def test_a_closed_checkpoint_seeks_no_holes(holed):
    weights = open_checkpoint(holed)
    weights.close()
    assert weights.warnings == []


def test_a_missing_file_has_no_warning(holed):
    with open_checkpoint(holed) as weights:
        holed.unlink()
        assert weights.warnings == []
        # Opening a FIFO would wait for a writer.
        os.mkfifo(holed)
        assert weights.warnings == []


def test_a_file_that_is_cut_meanwhile_has_no_warning(holed, monkeypatch):
    seek = os.lseek

    def seek_and_cut(descriptor, offset, how):
        found = seek(descriptor, offset, how)
        if how == os.SEEK_HOLE:
            os.truncate(holed, STORED_BYTES)
        return found

    with open_checkpoint(holed) as weights:
        monkeypatch.setattr(os, "lseek", seek_and_cut)
        assert weights.warnings == []
        assert holed.stat().st_size == STORED_BYTES


def test_a_file_that_was_cut_has_no_warning(holed):
    weights = open_checkpoint(holed)
    os.truncate(holed, STORED_BYTES)
    assert weights.warnings == []
    with pytest.raises(OSError, match=r"model\.safetensors"):
        weights.read("t9")


# File systems


def test_a_file_system_that_knows_no_holes_has_no_warning(holed, monkeypatch):
    # To lseek(2), such a file system has one hole, at the end of the file (`generic_file_llseek`).
    def seek(descriptor, offset, how):
        return os.fstat(descriptor).st_size if how == os.SEEK_HOLE else offset

    with open_checkpoint(holed) as weights:
        monkeypatch.setattr(os, "lseek", seek)
        assert weights.warnings == []


@pytest.mark.parametrize("code", [errno.EINVAL, errno.ENXIO, errno.EOPNOTSUPP])
def test_a_file_system_that_refuses_has_no_warning(holed, monkeypatch, code):
    def refuse(*_):
        raise OSError(code, os.strerror(code))

    with open_checkpoint(holed) as weights:
        monkeypatch.setattr(os, "lseek", refuse)
        assert weights.warnings == []


def test_files_on_a_fuse_mount_are_not_opened_again(tmp_path):
    source = tmp_path / "source"
    source.mkdir()
    stop_after_truncate(write_whole(source / "model.safetensors"))
    with real.slow_fuse(source, tmp_path / "slow") as slow, open_checkpoint(slow.path) as weights:
        before = slow.gate.counts()["openings"]
        assert weights.warnings == []
        assert weights.verify().warnings == ()
        assert slow.gate.counts()["openings"] == before > 0


class OnNetwork:
    """Presents the files of a checkpoint as if they were on an NFS mount."""

    def __init__(self, weights):
        self._files = native_files(weights)

    def __getattr__(self, name):
        return getattr(self._files, name)

    def file_of(self, name, *, reads_ahead):
        return SimpleNamespace(file_system={"type": "nfs4", "is_network": True})


def test_files_on_a_network_mount_are_checked_in_parallel(tmp_path, monkeypatch):
    for number in range(4):
        path = tmp_path / f"model-{number}.safetensors"
        safetensors.numpy.save_file({f"{number}.t": np.ones(TENSOR_BYTES, "u1")}, path)
        punch(path, 4 * PAGE_BYTES, 5 * PAGE_BYTES)
    everyone = threading.Barrier(4)
    seek = os.lseek

    def meet(descriptor, offset, how):
        if how == os.SEEK_HOLE and offset < 4 * PAGE_BYTES:
            everyone.wait(timeout=600)
        return seek(descriptor, offset, how)

    with open_checkpoint(tmp_path) as weights:
        expected = weights.warnings
        monkeypatch.setattr(os, "lseek", meet)
        assert holes.warnings(OnNetwork(weights)) == expected
    assert [warning.partition(":")[0] for warning in expected] == [
        str(tmp_path / f"model-{number}.safetensors") for number in range(4)
    ]


# Checksums


def test_verify_warns_of_a_file_without_checksums(holed):
    with open_checkpoint(holed) as weights:
        report = weights.verify()
        assert (report.unchecked, report.bad) == ((str(holed),), ())
        assert list(report.warnings) == weights.warnings != []


def test_verify_warns_of_no_file_that_has_its_checksums(holed):
    with open_checkpoint(holed) as weights:
        weights.write_checksums()
        report = weights.verify()
        assert (report.checked, report.warnings) == ((str(holed),), ())
        assert len(weights.warnings) == 1


@pytest.mark.parametrize("make", MAKERS)
def test_verify_warns_of_a_file_that_lacks_its_checksums(tmp_path, make):
    path = write_whole(tmp_path / "model.safetensors")
    with open_checkpoint(path) as weights:
        weights.write_checksums()
    make(path)
    with open_checkpoint(path) as weights:
        report = weights.verify()
    assert [error.name for error in report.bad] == [f"t{number}" for number in range(3, TENSORS)]
    assert ["1 hole" in warning for warning in report.warnings] == [True]


# The command


def command(*arguments):
    return CliRunner().invoke(app, list(map(str, arguments)))


@pytest.mark.parametrize("arguments", [("info",), ("check",), ("verify",), ("verify", "--write")])
def test_the_command_warns_and_succeeds(holed, arguments):
    (warning,) = warnings(holed)
    found = command(*arguments, holed)
    assert found.exit_code == 0, found.output
    # The command wraps lines at 80 columns.
    assert f" warning: {warning}" in " ".join(found.stdout.split())
    facts = json.loads(command(*arguments, holed, "--json").stdout)
    assert (facts[0] if arguments[0] == "verify" else facts)["warnings"] == [warning]


def test_the_command_trusts_checksums(holed):
    assert command("verify", "--write", holed).exit_code == 0
    found = command("verify", holed)
    assert found.exit_code == 0, found.output
    assert "warning" not in found.stdout


def test_a_token_file_has_no_warnings(tmp_path):
    path = tmp_path / "train.bin"
    np.arange(50_000, dtype="u2").tofile(path)
    assert json.loads(command("check", path, "--json").stdout)["warnings"] == []

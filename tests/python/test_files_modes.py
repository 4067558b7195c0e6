"""Modes: `auto` steps down from shared to private to read by errno, on real mounts and under strace."""

import errno
import os
from pathlib import Path

import numpy as np
import pytest

from pagestream import MappedFile

from support import real
from support.injecting import injecting
from support.process import PROGRAMS, output_of

CONTENT = np.arange(50_000, dtype="u4").tobytes()


def test_a_direct_io_mount_refuses_shared_and_is_mapped_private(direct_mount):
    (direct_mount / "f").write_bytes(CONTENT)
    f = MappedFile(direct_mount / "f")
    assert f.mode == "private"
    assert f.reason == "MAP_SHARED: ENODEV (No such device)"
    assert f.file_system.type in ("fuse", "fuse.bindfs")
    assert not f.file_system.is_network
    assert f.read() == bytes(f.view()) == CONTENT
    assert np.array_equal(np.frombuffer(f, "u4"), np.arange(50_000))


def test_requesting_shared_on_a_direct_io_mount_is_an_error_with_advice(direct_mount):
    (direct_mount / "f").write_bytes(CONTENT)
    with pytest.raises(OSError, match=r'MAP_SHARED.*mode "auto" or "private"') as caught:
        MappedFile(direct_mount / "f", mode="shared")
    assert (caught.value.errno, caught.value.filename) == (errno.ENODEV, str(direct_mount / "f"))


@pytest.mark.parametrize("mode", ["private", "read"])
def test_the_other_modes_work_on_a_direct_io_mount(direct_mount, mode):
    (direct_mount / "f").write_bytes(CONTENT)
    f = MappedFile(direct_mount / "f", mode=mode)
    assert (f.mode, f.reason) == (mode, None)
    assert f.read(4, 100) == CONTENT[4:104]


@pytest.mark.parametrize("mount", ["cached_mount", "sftp_mount"])
def test_a_fuse_mount_with_a_cache_is_mapped_shared(mount, request):
    point = request.getfixturevalue(mount)
    (point / "f").write_bytes(CONTENT)
    f = MappedFile(point / "f")
    assert (f.mode, f.reason) == ("shared", None)
    assert f.read() == CONTENT
    assert f.file_system.is_network == (mount == "sftp_mount")
    f.check()


def test_sshfs_with_direct_io_is_mapped_private(tmp_path):
    source = tmp_path / "source"
    source.mkdir()
    (source / "f").write_bytes(CONTENT)
    with real.sshfs(source, tmp_path / "sftp", "direct_io") as mount:
        f = MappedFile(mount / "f")
        assert f.mode == "private"
        assert f.reason == "MAP_SHARED: ENODEV (No such device)"
        assert f.read() == CONTENT
        f.close()


def test_tmpfs_is_mapped_shared():
    path = Path("/dev/shm") / f"pagestream-{os.getpid()}"
    if real.file_system_type(path.parent) != "tmpfs":
        real.missing("a tmpfs on /dev/shm")
    try:
        path.write_bytes(CONTENT)
        f = MappedFile(path)
        assert (f.mode, f.file_system.type, f.read()) == ("shared", "tmpfs", CONTENT)
    finally:
        path.unlink()


# The error, the mmap calls of the file that fail with it, the resulting mode, and the reported reason.
INJECTED = [
    ("ENODEV", "1", "private", "MAP_SHARED: ENODEV (No such device)"),
    ("EACCES", "1", "private", "MAP_SHARED: EACCES (Permission denied)"),
    ("EPERM", "1", "private", "MAP_SHARED: EPERM (Operation not permitted)"),
    ("EINVAL", "1", "private", "MAP_SHARED: EINVAL (Invalid argument)"),
    ("ENODEV", "1+", "read", "MAP_SHARED: ENODEV (No such device); MAP_PRIVATE: ENODEV (No such device)"),
    ("EPERM", "1+", "read", "MAP_SHARED: EPERM (Operation not permitted); MAP_PRIVATE: EPERM"),
    ("EIO", "1", "read", "MAP_SHARED: EIO (Input/output error)"),
    ("ENOMEM", "1", "read", "MAP_SHARED: ENOMEM (Cannot allocate memory): no room for a mapping"),
    ("EAGAIN", "1..2", "shared", None),
    ("EINTR", "1..50", "shared", None),
    ("EINTR", "1+", "read", "MAP_SHARED: EINTR (Interrupted system call); MAP_PRIVATE: EINTR"),
]


@pytest.mark.parametrize(("error", "when", "mode", "reason"), INJECTED)
def test_the_step_down_is_by_errno(token_file, error, when, mode, reason):
    code = PROGRAMS / "files_modes/the_step_down_is_by_errno.py"
    found = output_of(code, token_file, wrapper=injecting(token_file, "mmap", error, when))
    found_mode, found_reason = found.split("|")
    assert found_mode == mode
    assert found_reason.startswith(str(reason))


@pytest.mark.parametrize("mode", ["shared", "private"])
def test_a_pinned_mode_raises_the_errno(token_file, mode):
    code = PROGRAMS / "files_modes/a_pinned_mode_raises_the_errno.py"
    wrapper = injecting(token_file, "mmap", "EPERM", "1+")
    number, named, text = output_of(code, token_file, mode, wrapper=wrapper).split(" ", 2)
    assert (int(number), named) == (errno.EPERM, "True")
    assert text.startswith(f"cannot map the file {mode}")
    assert 'use the mode "auto" or "read"' in text


@pytest.mark.parametrize(
    ("error", "when", "expected"),
    [
        ("EINTR", "1..60", "8192"),
        ("EAGAIN", "1..3", "8192"),
        ("EIO", "1", "8192"),
        ("ETIMEDOUT", "1", "8192"),
        ("EINTR", "1+", "MappedReadError EINTR"),
        ("EIO", "1+", "MappedReadError EIO"),
        ("ESTALE", "1+", "MappedReadError ESTALE"),
        ("ETIMEDOUT", "1+", "MappedReadError ETIMEDOUT"),
        ("ENOTCONN", "1+", "MappedReadError ENOTCONN"),
    ],
)
def test_positioned_reads_retry_transient_errors_and_raise_permanent_ones(token_file, error, when, expected):
    # Opening in "read" mode reads the last byte, and the first injected error would hit that read. Here
    # another mode opens the file and the guard is off, so that read() makes the first pread.
    code = PROGRAMS / "files_modes/positioned_reads_retry_what_passes_and_raise.py"
    wrapper = injecting(token_file, "pread64", error, when)
    assert output_of(code, token_file, wrapper=wrapper, PAGESTREAM_FAULT_GUARD="off") == expected


def test_an_interrupted_open_is_tried_again(token_file):
    code = "import sys; from pagestream import MappedFile; print(MappedFile(sys.argv[1]).size)"
    wrapper = injecting(token_file, "openat,open", "EINTR", "1..20")
    assert output_of(code, token_file, wrapper=wrapper) == "8192"


def test_too_little_address_space_leads_to_reads_and_the_limit_is_named(tmp_path):
    path = tmp_path / "huge"
    with open(path, "wb") as file:
        file.truncate(1 << 40)
    code = PROGRAMS / "files_modes/too_little_address_space_leads_to_reads.py"
    first, second = output_of(code, path).splitlines()
    assert first.startswith("read MAP_SHARED: ENOMEM (Cannot allocate memory): RLIMIT_AS (ulimit -v) allows")
    assert second.startswith(f"{errno.ENOMEM} cannot map the file shared")
    assert "RLIMIT_AS" in second


def test_a_file_is_opened_once_and_mapped_once_per_protection(token_file):
    strace = real.need_tool("strace")
    log = token_file.parent / "log"
    code = PROGRAMS / "files_modes/mapped_once_per_protection.py"
    wrapper = (strace, "-f", "-qq", "-o", str(log), "-P", str(token_file), "-e", "trace=open,openat,mmap")
    output_of(code, token_file, wrapper=wrapper)
    calls = [line.split("(")[0].split()[-1] for line in log.read_text().splitlines() if "(" in line]
    assert sorted(call.removesuffix("at") for call in calls) == ["mmap", "mmap", "open"]

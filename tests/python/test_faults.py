"""Files that are truncated or fail during reads: an exception, never a dead process, never zeros."""

import errno
import os
import signal
from pathlib import Path

import pytest

from pagestream import MappedFile
from pagestream.errors import FileChangedError, MappedReadError

from support import real
from support.process import PROGRAMS, output_of, run_python

PAGE_BYTES = 4096

# Four threads read at random while the file is truncated to a random size and grown back with its data, 250
# times. Every returned byte must be the file's: each 8 bytes hold their own number.
TORTURE = PROGRAMS / "faults/torture.py"


@pytest.mark.stress
@pytest.mark.parametrize("mode", ["shared", "private", "read"])
def test_a_file_cut_under_four_reading_threads_raises_on_a_disk(tmp_path, mode):
    assert output_of(TORTURE, tmp_path / "f", mode, 250) == "survived"


@pytest.mark.stress
@pytest.mark.parametrize("mode", ["shared", "private"])
def test_a_file_cut_under_four_reading_threads_raises_on_tmpfs(mode):
    path = Path("/dev/shm") / f"pagestream-{os.getpid()}-{mode}"
    if real.file_system_type(path.parent) != "tmpfs":
        real.missing("a tmpfs on /dev/shm")
    try:
        assert output_of(TORTURE, path, mode, 250) == "survived"
    finally:
        path.unlink(missing_ok=True)


@pytest.mark.stress
@pytest.mark.parametrize("mode", ["shared", "private"])
def test_a_file_cut_under_four_reading_threads_raises_on_fuse(cached_mount, mode):
    assert output_of(TORTURE, cached_mount / "f", mode, 50) == "survived"


@pytest.mark.stress
@pytest.mark.parametrize("mode", ["private", "read"])
def test_a_file_cut_under_four_reading_threads_raises_on_direct_fuse(direct_mount, mode):
    assert output_of(TORTURE, direct_mount / "f", mode, 50) == "survived"


@pytest.mark.parametrize("mode", ["shared", "private", "read"])
def test_zeros_are_data_only_if_the_server_has_them(tmp_path, mode):
    """A page that is truncated during the read arrives with zeros at its end, before the kernel knows why."""
    source = tmp_path / "source"
    source.mkdir()
    content = b"\1" * 3 * PAGE_BYTES + bytes(PAGE_BYTES)
    (source / "f").write_bytes(content)
    timeouts = [f"{name}_timeout=3600" for name in ("attr", "entry", "ac_attr")]
    # On a read-only mount, the kernel maintains no access time and therefore does not query the server.
    with real.bindfs(source, tmp_path / "mount", "ro", *timeouts) as mount:
        file = MappedFile(mount / "f", mode=mode)
        assert file.read() == content
        os.truncate(source / "f", 3 * PAGE_BYTES)
        assert file.read(0, 2 * PAGE_BYTES) == content[: 2 * PAGE_BYTES], "no zeros: the server is not asked"
        with pytest.raises((MappedReadError, FileChangedError), match=r"16384.*12288"):
            file.read(2 * PAGE_BYTES, 2 * PAGE_BYTES)


def test_the_disk_of_these_tests_is_a_disk(tmp_path):
    found = real.file_system_type(tmp_path)
    if found != "ext4":
        real.missing(f"a temporary directory on ext4, not {found}")
    assert found == "ext4"


# The handlers installed before the file is opened, and the handlers installed after it.
HANDLERS = {
    "alone": ("", ""),
    "faulthandler before": ("faulthandler", ""),
    "faulthandler after": ("", "faulthandler"),
    "faulthandler before and after": ("faulthandler", "faulthandler anew"),
    "a Python handler before": ("python", ""),
    "a Python handler after": ("", "python"),
    "ignored before": ("ignored", ""),
    "the default after": ("", "default"),
    "torch's worker handler before": ("torch", ""),
    "torch's worker handler after": ("torch imported", "torch"),
    "SIGBUS blocked in the thread": ("", "blocked"),
    "all of them, in turn": ("torch imported,faulthandler", "python,faulthandler anew,torch"),
}


@pytest.mark.parametrize(
    "order",
    [
        pytest.param(order, marks=[pytest.mark.frameworks] * ("torch" in str(HANDLERS[order])))
        for order in HANDLERS
    ],
)
def test_a_cut_file_raises_whatever_other_handlers_there_are(big_file, order):
    before, after = HANDLERS[order]
    code = PROGRAMS / "faults/a_cut_file_raises.py"
    assert output_of(code, big_file, before, after).split() == ["raised"] * 3


@pytest.mark.parametrize("guard", ["copies", "off"])
def test_a_cut_file_raises_whatever_is_guarded(big_file, guard):
    code = PROGRAMS / "faults/a_cut_file_raises.py"
    assert output_of(code, big_file, "", "", PAGESTREAM_FAULT_GUARD=guard).split() == ["raised"] * 3


def test_a_cut_file_raises_in_a_forked_child(big_file):
    code = PROGRAMS / "faults/a_cut_file_raises_in_a_forked_child.py"
    assert output_of(code, big_file).split() == ["raised"] * 3


def test_the_rest_of_the_last_page_is_not_taken_for_data(big_file):
    """There is no signal: the rest of the file's last page reads as zeros."""
    code = PROGRAMS / "faults/the_rest_of_the_last_page_is_not_data.py"
    assert output_of(code, big_file) == "raised"


@pytest.mark.parametrize("size", [1 << 24, (1 << 24) + 1, 1 << 25])
def test_a_file_cut_and_grown_back_with_zeros_is_noticed(big_file, size):
    code = PROGRAMS / "faults/a_file_that_grew_back_with_zeros_raises.py"
    assert output_of(code, big_file, size) == "raised"


@pytest.mark.parametrize("arrival", ["kill", "raise_signal"])
@pytest.mark.parametrize("earlier", ["", "faulthandler"])
def test_a_signal_that_is_sent_still_kills(big_file, arrival, earlier):
    code = PROGRAMS / "faults/a_signal_that_is_sent_has_its_effect.py"
    done = run_python(code, big_file, earlier, arrival)
    assert done.returncode == -signal.SIGBUS
    assert "alive" not in done.stdout
    assert ("Fatal Python error: Bus error" in done.stderr) == bool(earlier)


def test_a_signal_that_is_sent_still_reaches_a_python_handler(big_file):
    code = PROGRAMS / "faults/a_signal_that_is_sent_has_its_effect.py"
    assert output_of(code, big_file, "printing", "kill").split() == ["handled", "alive"]


def test_a_signal_that_is_ignored_stays_ignored(big_file):
    code = PROGRAMS / "faults/a_signal_that_is_sent_has_its_effect.py"
    assert output_of(code, big_file, "ignored", "kill") == "alive"


@pytest.mark.parametrize(
    "handlers",
    [
        ("", ""),
        ("faulthandler", ""),
        ("", "faulthandler"),
        ("faulthandler", "faulthandler anew"),
    ],
)
def test_a_foreign_fault_still_kills_and_faulthandler_still_reports(big_file, handlers):
    """A truncated `mmap` of the standard library is not ours. The fault must kill, not loop forever."""
    code = PROGRAMS / "faults/a_foreign_fault_kills.py"
    done = run_python(code, big_file, *handlers)
    assert done.returncode == -signal.SIGBUS
    assert "alive" not in done.stdout
    assert ("Fatal Python error: Bus error" in done.stderr) == any(handlers)


def test_after_faulthandler_has_left_a_signal_that_is_sent_still_kills(big_file):
    """faulthandler restores our entry, which it had found. That entry must not lead back to faulthandler."""
    code = PROGRAMS / "faults/a_signal_kills_after_faulthandler_has_left.py"
    done = run_python(code, big_file)
    assert (done.returncode, done.stdout) == (-signal.SIGBUS, "")


def test_after_faulthandler_has_left_a_foreign_fault_still_kills(big_file):
    code = PROGRAMS / "faults/a_foreign_fault_kills_after_faulthandler_has_left.py"
    done = run_python(code, big_file)
    assert (done.returncode, done.stdout) == (-signal.SIGBUS, "")


def test_handlers_that_come_and_go_leak_nothing_and_copies_survive(big_file):
    code = PROGRAMS / "faults/handlers_that_come_and_go_leak_nothing.py"
    assert output_of(code, big_file).split() == ["raised"] * 3


def test_no_handler_is_installed_with_the_guard_off(big_file):
    code = (
        "import sys, pagestream; f = pagestream.MappedFile(sys.argv[1])\n"
        "f.read(0, 10); print(open('/proc/self/status').read())"
    )
    bit = 1 << (signal.SIGBUS - 1)

    def catches(status):
        line = next(line for line in status.splitlines() if line.startswith("SigCgt"))
        return bool(int(line.split()[1], 16) & bit)

    assert catches(output_of(code, big_file))
    assert catches(output_of(code, big_file, PAGESTREAM_FAULT_GUARD="copies"))
    assert not catches(output_of(code, big_file, PAGESTREAM_FAULT_GUARD="off"))


def test_a_hole_on_a_full_tmpfs_is_read_all_the_same(tmp_path):
    """A fault in the hole cannot allocate a page and raises SIGBUS. pread returns the zeros of the hole."""
    if os.geteuid() != 0:
        real.missing("root, to mount a small tmpfs")
    code = PROGRAMS / "faults/a_hole_on_a_full_tmpfs_is.py"
    import subprocess

    point = tmp_path / "small"
    point.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=1m", "none", point], check=True)
    try:
        assert output_of(code, point) == "read"
    finally:
        subprocess.run(["umount", "-l", point], check=True)


def test_an_error_survives_pickling():
    import pickle

    from pagestream.errors import FileChangedError, MappedReadError

    error = MappedReadError(errno.EIO, "text", "path")
    error.offset, error.length = 5, 6
    again = pickle.loads(pickle.dumps(error))
    assert (type(again), again.errno, again.strerror, again.filename) == (
        MappedReadError,
        errno.EIO,
        "text",
        "path",
    )
    assert (again.offset, again.length) == (5, 6)
    changed = pickle.loads(pickle.dumps(FileChangedError(errno.ESTALE, "text", "path")))
    assert (type(changed), changed.filename) == (FileChangedError, "path")

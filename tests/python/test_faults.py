"""Files that are cut or fail while they are read: an exception, never a dead process, never zeros."""

import errno
import os
import signal
from pathlib import Path

import pytest

from support import real
from support.process import PROGRAMS, output_of, run_python

# Four threads read at random while the file is cut to a random size and grown back by its data, 250
# times. Whatever is returned must be the file's bytes: each 8 bytes hold their own number.
TORTURE = PROGRAMS / "faults/torture.py"


@pytest.mark.stress
@pytest.mark.parametrize("mode", ["shared", "private", "read"])
def test_a_file_cut_under_four_reading_threads_raises_on_a_disk(tmp_path: Path, mode: str) -> None:
    assert output_of(TORTURE, tmp_path / "f", mode, 250) == "survived"


@pytest.mark.stress
@pytest.mark.parametrize("mode", ["shared", "private"])
def test_a_file_cut_under_four_reading_threads_raises_on_tmpfs(mode: str) -> None:
    path = Path("/dev/shm") / f"pagestream-{os.getpid()}-{mode}"
    if real.file_system_type(path.parent) != "tmpfs":
        real.missing("a tmpfs on /dev/shm")
    try:
        assert output_of(TORTURE, path, mode, 250) == "survived"
    finally:
        path.unlink(missing_ok=True)


@pytest.mark.stress
@pytest.mark.parametrize("mode", ["shared", "private"])
def test_a_file_cut_under_four_reading_threads_raises_on_fuse(cached_mount: Path, mode: str) -> None:
    assert output_of(TORTURE, cached_mount / "f", mode, 50) == "survived"


@pytest.mark.stress
@pytest.mark.parametrize("mode", ["private", "read"])
def test_a_file_cut_under_four_reading_threads_raises_on_direct_fuse(direct_mount: Path, mode: str) -> None:
    assert output_of(TORTURE, direct_mount / "f", mode, 50) == "survived"


def test_the_disk_of_these_tests_is_a_disk(tmp_path: Path) -> None:
    found = real.file_system_type(tmp_path)
    if found != "ext4":
        real.missing(f"a temporary directory on ext4, not {found}")
    assert found == "ext4"


def cut_and_read(setup: str = "") -> str:
    """Returns code that reads beyond the new end of a cut file and prints the outcome."""
    return f"""
import os, sys, errno
from pagestream import MappedFile
from pagestream.errors import MappedReadError
path = sys.argv[1]
{setup}
f = MappedFile(path)
f.read(0, 10)
AFTER_OPEN = True
"""


ATTEMPT = """
os.truncate(path, 4096)
for _ in range(3):
    try:
        f.read(1 << 20, 100_000)
    except MappedReadError as error:
        assert error.errno == errno.EIO and error.filename == path
        assert (error.offset, error.length) == (1 << 20, 100_000), (error.offset, error.length)
        assert "truncated from 16777216 to 4096 bytes" in str(error)
        print("raised")
"""

HANDLERS = {
    "alone": ("", ""),
    "faulthandler before": ("import faulthandler; faulthandler.enable()", ""),
    "faulthandler after": ("", "import faulthandler; faulthandler.enable()"),
    "faulthandler before and after": (
        "import faulthandler; faulthandler.enable()",
        "faulthandler.disable(); faulthandler.enable()",
    ),
    "a Python handler before": ("import signal; signal.signal(signal.SIGBUS, lambda *_: None)", ""),
    "a Python handler after": ("", "import signal; signal.signal(signal.SIGBUS, lambda *_: None)"),
    "ignored before": ("import signal; signal.signal(signal.SIGBUS, signal.SIG_IGN)", ""),
    "the default after": ("", "import signal; signal.signal(signal.SIGBUS, signal.SIG_DFL)"),
    "torch's worker handler before": ("import torch; torch._C._set_worker_signal_handlers()", ""),
    "torch's worker handler after": ("import torch", "torch._C._set_worker_signal_handlers()"),
    "SIGBUS blocked in the thread": (
        "",
        "import signal; signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGBUS])",
    ),
    "all of them, in turn": (
        "import faulthandler, signal, torch; faulthandler.enable()",
        (
            "signal.signal(signal.SIGBUS, lambda *_: None); faulthandler.disable(); faulthandler.enable(); "
            "torch._C._set_worker_signal_handlers()"
        ),
    ),
}


@pytest.mark.parametrize("order", HANDLERS)
def test_a_cut_file_raises_whatever_other_handlers_there_are(big_file: Path, order: str) -> None:
    before, after = HANDLERS[order]
    code = cut_and_read(before) + after + ATTEMPT
    assert output_of(code, big_file).split() == ["raised"] * 3


def test_a_cut_file_raises_with_the_guard_off(big_file: Path) -> None:
    code = cut_and_read() + "import signal\n" + ATTEMPT
    assert output_of(code, big_file, PAGESTREAM_FAULT_GUARD="off").split() == ["raised"] * 3


def test_a_cut_file_raises_in_a_forked_child(big_file: Path) -> None:
    code = (
        cut_and_read()
        + """
child = os.fork()
if child == 0:
"""
        + "".join(f"    {line}\n" for line in ATTEMPT.strip().splitlines())
        + """
    sys.stdout.flush()
    os._exit(0)
_, status = os.waitpid(child, 0)
assert status == 0, status
"""
    )
    assert output_of(code, big_file).split() == ["raised"] * 3


def test_the_rest_of_the_last_page_is_not_taken_for_data(big_file: Path) -> None:
    """No signal tells: the rest of the page in which the file ends reads as zeros."""
    code = (
        cut_and_read()
        + """
os.truncate(path, 4096 + 100)
try:
    f.read(4096, 200)
except MappedReadError as error:
    print("raised")
"""
    )
    assert output_of(code, big_file) == "raised"


@pytest.mark.parametrize("size", [1 << 24, (1 << 24) + 1, 1 << 25])
def test_a_file_cut_and_grown_back_with_zeros_is_noticed(big_file: Path, size: int) -> None:
    code = (
        cut_and_read()
        + """
from pagestream.errors import FileChangedError
os.truncate(path, 0); os.truncate(path, int(sys.argv[2]))
try:
    f.read(4096, 200)
except FileChangedError as error:
    assert error.errno == errno.ESTALE and error.filename == path
    print("raised")
"""
    )
    assert output_of(code, big_file, size) == "raised"


@pytest.mark.parametrize(
    "arrival", ["os.kill(os.getpid(), signal.SIGBUS)", "signal.raise_signal(signal.SIGBUS)"]
)
@pytest.mark.parametrize("earlier", ["", "import faulthandler; faulthandler.enable()"])
def test_a_signal_that_is_sent_still_kills(big_file: Path, arrival: str, earlier: str) -> None:
    done = run_python(cut_and_read(earlier) + f"import signal\n{arrival}\nprint('alive')\n", big_file)
    assert done.returncode == -signal.SIGBUS
    assert "alive" not in done.stdout
    assert ("Fatal Python error: Bus error" in done.stderr) == bool(earlier)


def test_a_signal_that_is_sent_still_reaches_a_python_handler(big_file: Path) -> None:
    setup = "import signal; signal.signal(signal.SIGBUS, lambda *_: print('handled'))"
    code = cut_and_read(setup) + "os.kill(os.getpid(), signal.SIGBUS)\nprint('alive')\n"
    assert output_of(code, big_file).split() == ["handled", "alive"]


def test_a_signal_that_is_ignored_stays_ignored(big_file: Path) -> None:
    setup = "import signal; signal.signal(signal.SIGBUS, signal.SIG_IGN)"
    code = cut_and_read(setup) + "os.kill(os.getpid(), signal.SIGBUS)\nprint('alive')\n"
    assert output_of(code, big_file) == "alive"


@pytest.mark.parametrize(
    "handlers",
    [
        ("", ""),
        ("import faulthandler; faulthandler.enable()", ""),
        ("", "import faulthandler; faulthandler.enable()"),
        ("import faulthandler; faulthandler.enable()", "faulthandler.disable(); faulthandler.enable()"),
    ],
)
def test_a_fault_that_is_not_ours_still_kills_and_faulthandler_still_reports(
    big_file: Path, handlers: tuple[str, str]
) -> None:
    """A cut `mmap` of the standard library is not ours: it must kill, and not loop for ever."""
    before, after = handlers
    code = (
        cut_and_read(before)
        + f"{after}\nf.read(0, 10)\n"
        + """
import mmap
foreign = mmap.mmap(os.open(path, os.O_RDONLY), 0, prot=mmap.PROT_READ)
os.truncate(path, 4096)
foreign[1 << 20]
print("alive")
"""
    )
    done = run_python(code, big_file)
    assert done.returncode == -signal.SIGBUS
    assert "alive" not in done.stdout
    assert ("Fatal Python error: Bus error" in done.stderr) == any(handlers)


LEAVING = """
import faulthandler, signal
faulthandler.enable()
f.read(0, 1)
faulthandler.disable()
f.read(0, 1)
"""


def test_after_faulthandler_has_left_a_signal_that_is_sent_still_kills(big_file: Path) -> None:
    """It puts back the entry of ours that it had found. That entry must not lead to it again."""
    code = cut_and_read() + LEAVING + "os.kill(os.getpid(), signal.SIGBUS)\nprint('alive')\n"
    done = run_python(code, big_file)
    assert (done.returncode, done.stdout) == (-signal.SIGBUS, "")


def test_after_faulthandler_has_left_a_foreign_fault_still_kills(big_file: Path) -> None:
    foreign = """
import mmap
foreign = mmap.mmap(os.open(path, os.O_RDONLY), 0, prot=mmap.PROT_READ)
os.truncate(path, 4096)
foreign[1 << 20]
print("alive")
"""
    done = run_python(cut_and_read() + LEAVING + foreign, big_file)
    assert (done.returncode, done.stdout) == (-signal.SIGBUS, "")


def test_handlers_that_come_and_go_leak_nothing_and_copies_survive(big_file: Path) -> None:
    code = (
        cut_and_read()
        + """
import faulthandler, signal
def resident():
    return next(int(line.split()[1]) for line in open("/proc/self/status") if line.startswith("RssAnon"))
def turn():
    signal.signal(signal.SIGBUS, lambda *_: None); f.read(0, 1)
    signal.signal(signal.SIGBUS, signal.SIG_DFL); f.read(0, 1)
    faulthandler.enable(); f.read(0, 1)
    faulthandler.disable(); f.read(0, 1)
for _ in range(100): turn()
before = resident()
for _ in range(5000): turn()
assert resident() - before < 512, resident() - before
"""
        + ATTEMPT
    )
    assert output_of(code, big_file).split() == ["raised"] * 3


def test_no_handler_is_installed_with_the_guard_off(big_file: Path) -> None:
    code = cut_and_read() + "print(open('/proc/self/status').read())\n"
    bit = 1 << (signal.SIGBUS - 1)

    def catches(status: str) -> bool:
        line = next(line for line in status.splitlines() if line.startswith("SigCgt"))
        return bool(int(line.split()[1], 16) & bit)

    assert catches(output_of(code, big_file))
    assert not catches(output_of(code, big_file, PAGESTREAM_FAULT_GUARD="off"))


def test_a_hole_on_a_full_tmpfs_is_read_all_the_same(tmp_path: Path) -> None:
    """A fault in the hole has to allocate a page and cannot: SIGBUS. pread returns the zeros of the hole."""
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


def test_an_error_survives_pickling() -> None:
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

"""Bus errors of others: libraries that recover from their own, and signals that are no faults."""

import signal
import subprocess
from pathlib import Path

import pytest

from support import real
from support.process import output_of, run_python

SOURCE = Path(__file__).parents[1] / "c/recovering_handler.c"

# The library is there before us, so its handler is our predecessor.
RECOVERING = """
import ctypes, sys, threading
library = ctypes.CDLL(sys.argv[1])
library.touch.argtypes = [ctypes.c_size_t]
assert library.prepare(sys.argv[2].encode()) == 0
assert library.install() == 0
from pagestream import MappedFile
f = MappedFile(sys.argv[3])
f.read(0, 8)
"""


@pytest.fixture
def library(tmp_path: Path) -> Path:
    compiler = real.need_tool("gcc")
    path = tmp_path / "recovering_handler.so"
    options = ["-shared", "-fPIC", "-O1", "-Wall", "-Wextra", "-Werror", "-Wno-clobbered"]
    subprocess.run([compiler, *options, SOURCE, "-o", path], check=True, capture_output=True)
    return path


@pytest.mark.parametrize(
    "depths", ["[0] * 20", "range(0, 20_000, 999)", "range(20_000, 0, -999)", "[0, 9999] * 9"]
)
def test_a_library_recovers_from_as_many_faults_of_its_own_as_there_are(
    library: Path, big_file: Path, tmp_path: Path, depths: str
) -> None:
    """The library leaves our handler by siglongjmp, of which the handler learns nothing."""
    code = RECOVERING + f"print(all(library.touch(depth) == 1 for depth in {depths}))"
    assert output_of(code, library, tmp_path / "theirs", big_file) == "True"


def test_and_so_in_more_threads_than_have_places_in_the_chain(
    library: Path, big_file: Path, tmp_path: Path
) -> None:
    code = (
        RECOVERING
        + """
recovered = []
for number in range(300):
    thread = threading.Thread(target=lambda: recovered.append(library.touch(0)))
    thread.start()
    thread.join()
print(recovered.count(1), f.read(8, 8)[0])
"""
    )
    assert output_of(code, library, tmp_path / "theirs", big_file) == "300 1"


# A signal as the kernel makes it. A process may send itself any.
SEND = """
import ctypes, os, platform, signal, struct, sys, threading
from pagestream import MappedFile
MappedFile(sys.argv[1]).read(0, 8)
def send(code):
    number = {"x86_64": 297, "aarch64": 240}[platform.machine()]  # rt_tgsigqueueinfo
    cause = struct.pack("iiixxxxQ", signal.SIGBUS, 0, code, 0).ljust(128, bytes(1))
    thread = threading.get_native_id()
    assert ctypes.CDLL(None).syscall(number, os.getpid(), thread, signal.SIGBUS, cause) == 0
BUS_MCEERR_AO = 5
"""


def test_a_report_of_broken_memory_that_nobody_touched_kills_as_without_us(big_file: Path) -> None:
    """A fault would happen again by itself; this signal does not."""
    done = run_python(SEND + "send(BUS_MCEERR_AO)\nprint('alive')", big_file)
    assert (done.returncode, done.stdout) == (-signal.SIGBUS, "")


def test_and_is_ignored_where_it_was_ignored(big_file: Path) -> None:
    code = "import signal\nsignal.signal(signal.SIGBUS, signal.SIG_IGN)\n" + SEND
    assert output_of(code + "send(BUS_MCEERR_AO)\nsend(BUS_MCEERR_AO)\nprint('alive')", big_file) == "alive"

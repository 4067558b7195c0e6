"""Bus errors that are not ours: libraries that recover from their own faults, and signals without a fault."""

import signal
import subprocess
from pathlib import Path

import pytest

from support import real
from support.process import PROGRAMS, output_of, run_python

SOURCE = Path(__file__).parents[1] / "c/recovering_handler.c"


@pytest.fixture
def library(tmp_path):
    compiler = real.need_tool("gcc")
    path = tmp_path / "recovering_handler.so"
    options = ["-shared", "-fPIC", "-O1", "-Wall", "-Wextra", "-Werror", "-Wno-clobbered"]
    subprocess.run([compiler, *options, SOURCE, "-o", path], check=True, capture_output=True)
    return path


@pytest.mark.parametrize(
    "depths",
    [[0] * 20, range(0, 20_000, 999), range(20_000, 0, -999), [0, 9999] * 9],
    ids=["the same", "deeper", "shallower", "in turn"],
)
def test_a_library_recovers_from_any_number_of_its_own_faults(library, big_file, tmp_path, depths):
    """The library leaves our handler by siglongjmp, and the handler does not notice."""
    code = PROGRAMS / "faults_foreign/a_library_recovers_at_every_depth.py"
    assert output_of(code, library, tmp_path / "theirs", big_file, *depths) == "True"


def test_a_library_recovers_in_more_threads_than_the_chain_has_places(library, big_file, tmp_path):
    code = PROGRAMS / "faults_foreign/a_library_recovers_in_many_threads.py"
    assert output_of(code, library, tmp_path / "theirs", big_file) == "300 1"


def test_a_report_of_broken_untouched_memory_kills_as_without_pagestream(big_file):
    """A real fault would recur when the instruction runs again. This signal does not."""
    done = run_python(PROGRAMS / "faults_foreign/a_report_of_broken_memory_kills.py", big_file)
    assert (done.returncode, done.stdout) == (-signal.SIGBUS, "")


def test_a_report_of_broken_memory_stays_ignored(big_file):
    code = PROGRAMS / "faults_foreign/a_report_of_broken_memory_is_ignored.py"
    assert output_of(code, big_file) == "alive"

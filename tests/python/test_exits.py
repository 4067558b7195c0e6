"""A process that exits while reads are in flight ends at once, with the exit code of a plain program."""

import signal

import numpy as np
import pytest
import safetensors.numpy

from pagestream import open_checkpoint

from support import real
from support.process import PROGRAMS, kill, start_python

KIB = 1 << 10
# The exit codes of programs that do nothing else.
EXIT_CODES = {
    "end": 0,
    "sys.exit": 7,
    "sys.exit in a thread": 0,
    "os._exit": 7,
    "os._exit in a thread": 7,
    "exception": 1,
    "exception in a thread": 0,
    "exception in atexit": 0,
    "SIGINT": -signal.SIGINT,
    "SIGTERM": -signal.SIGTERM,
    "SIGABRT": -signal.SIGABRT,
}


@pytest.fixture(scope="module")
def source(tmp_path_factory):
    folder = tmp_path_factory.mktemp("exits")
    tensors = {f"t{number:02}": np.full((64, 4 * KIB), number, "u1") for number in range(16)}
    safetensors.numpy.save_file(tensors, folder / "model.safetensors")
    with open_checkpoint(folder) as weights:
        weights.write_checksums()
    return folder


@pytest.mark.parametrize("way", EXIT_CODES)
def test_a_process_exits_while_reads_are_in_flight(source, tmp_path, way):
    """The kernel ends a process only after its reads complete. The test holds these until the process
    exits."""
    with real.slow_fuse(source, tmp_path / "slow", direct_io=True) as slow:
        slow.gate.hold(4 * KIB)
        with start_python(PROGRAMS / "exits/leave.py", way, slow.path) as process:
            try:
                slow.gate.wait_for(5)
                process.stdin.write("leave\n")
                process.stdin.flush()
                assert process.stdout.readline() == "leaving\n"
                slow.gate.open()
                assert process.wait(timeout=600) == EXIT_CODES[way]
            except BaseException:
                slow.gate.open()
                kill(process.pid)
                raise

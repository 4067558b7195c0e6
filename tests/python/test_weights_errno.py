"""Failed reads of tensors: every way to read retries transient errors and raises permanent ones."""

import numpy as np
import pytest
import safetensors.numpy

from support.injecting import injecting
from support.process import PROGRAMS, output_of

pytestmark = pytest.mark.slow

TENSORS = 20
WAYS = ["pread", "direct", "ahead", "warm", "safe_open"]
# Each error, and the number of failing reads in each thread.
PASSES = [("EINTR", 60), ("EAGAIN", 3), ("EIO", 1)]
STAYS = ["EINTR", "EIO", "ESTALE"]


@pytest.fixture(scope="module")
def path(tmp_path_factory):
    path = tmp_path_factory.mktemp("errno") / "model.safetensors"
    safetensors.numpy.save_file({f"{n}": np.full(300_000, n, "u1") for n in range(TENSORS)}, path)
    return path


def found(path, way, error, count):
    program = PROGRAMS / "weights_errno/reads.py"
    # The first reads of a thread do not fail: they include the header's, and one more in "read" mode.
    first = 3 if way == "warm" else 2
    when = f"{first}+" if count is None else f"{first}..{first + count - 1}"
    # With the guard off, bytes are read with pread64 and not copied from the mapping.
    wrapper = injecting(path, "pread64", error, when)
    return output_of(program, path, way, wrapper=wrapper, PAGESTREAM_FAULT_GUARD="off")


@pytest.mark.parametrize(
    ("way", "error", "count"),
    [
        *((way, *fault) for way in WAYS for fault in PASSES),
        pytest.param("staging", "EINTR", 60, marks=pytest.mark.frameworks),
    ],
)
def test_transient_errors_are_retried(path, way, error, count):
    assert found(path, way, error, count) == f"{TENSORS} are right"


@pytest.mark.parametrize(
    ("way", "error"),
    [
        *((way, error) for way in WAYS for error in STAYS),
        ("pread", "ETIMEDOUT"),
        ("pread", "ENOTCONN"),
        pytest.param("staging", "ESTALE", marks=pytest.mark.frameworks),
    ],
)
def test_permanent_errors_are_raised_with_path_and_offset(path, way, error):
    assert found(path, way, error, None) == f"MappedReadError {error} True True"

"""Checkpoints larger than a program's memory, in control groups that kill it if it uses more."""

import json
import shutil

import numpy as np
import pytest
from safetensors.numpy import save_file

from support import large_checkpoint, real
from support.control_groups import memory_limit
from support.large_checkpoint import LARGEST_BYTES, MIB, TENSORS, TOTAL_BYTES, nbytes_of
from support.process import PROGRAMS, output_of

NUMPY_LIMIT_BYTES = 256 * MIB
LARGE_LIMIT_BYTES = 300 * MIB
TORCH_LIMIT_BYTES = 600 * MIB  # torch alone takes half of it, so the checkpoint does not fit
pytestmark = pytest.mark.slow

# Covers the memory of readers and of Python, and partly used huge pages.
SLACK_BYTES = 12 * MIB

# The limit on reads per byte for reads that bypass the page cache. If memory is short, the kernel drops
# cached pages before they are used: on a busy machine, up to three quarters of them. These reads are not
# counted here.
MOST_READ_DIRECTLY = 1.03

# The default budget and the default lead are these fractions of the available memory.
BUDGET_SHARE = 8
LEAD_SHARE = 4

STREAMS = [
    (strategy, mode)
    for strategy in ("auto", "mapped", "ahead", "pread", "direct")
    for mode in ("shared", "private", "read")
    # "mapped" and "ahead" need a mapping, and "ahead" does the same with both kinds.
    if (mode, strategy) not in {("read", "mapped"), ("read", "ahead"), ("private", "ahead")}
]
both_mounts = pytest.mark.parametrize("direct", [False, True], ids=["cached", "direct_io"])


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory):
    folder = tmp_path_factory.mktemp("weights_memory")
    if real.file_system_type(folder) in ("tmpfs", "ramfs"):
        real.missing("a temporary folder on a disk")
    large_checkpoint.write(folder)
    yield folder
    shutil.rmtree(folder)


@pytest.fixture
def cold_checkpoint(checkpoint):
    large_checkpoint.evict(checkpoint)
    return checkpoint


def used(program, folder, limit_bytes, *ways):
    """Returns how much memory grew in a program that used tensors in several ways and survived."""
    with memory_limit(limit_bytes) as wrapper:
        program = PROGRAMS / "weights_memory" / program
        found = json.loads(output_of(program, folder, json.dumps(ways), wrapper=wrapper))
    for way, took in zip(ways, found, strict=True):
        assert took["right"] == len(way.get("numbers", range(TENSORS)))
        if way.get("strategy") == "direct":
            assert took["stored_bytes"] <= MOST_READ_DIRECTLY * TOTAL_BYTES, way
    return [took["extra_bytes"] for took in found]


def by_numpy(folder, **way):
    (extra_bytes,) = used("uses_numpy.py", folder, NUMPY_LIMIT_BYTES, way)
    return extra_bytes


def by_torch(folder, *ways):
    large_checkpoint.evict(folder)
    return used("uses_torch.py", folder, TORCH_LIMIT_BYTES, *ways)


@pytest.mark.parametrize(("strategy", "mode"), STREAMS)
def test_a_stream_stays_within_its_default_budget(cold_checkpoint, strategy, mode):
    extra_bytes = by_numpy(cold_checkpoint, by="by_stream", strategy=strategy, mmap_mode=mode)
    assert extra_bytes <= NUMPY_LIMIT_BYTES // BUDGET_SHARE + LARGEST_BYTES + SLACK_BYTES


@pytest.mark.parametrize("strategy", ["pread", "ahead"])
def test_a_stream_stays_within_a_budget_that_is_given(cold_checkpoint, strategy):
    extra_bytes = by_numpy(cold_checkpoint, by="by_stream", strategy=strategy, memory_bytes=80 * MIB)
    assert extra_bytes <= 80 * MIB + LARGEST_BYTES + SLACK_BYTES


@pytest.fixture(scope="module")
def large_tensors(tmp_path_factory):
    """Makes a checkpoint whose tensors exceed the default budget of a program in `LARGE_LIMIT_BYTES`."""
    folder = tmp_path_factory.mktemp("large_tensors")
    path = folder / "model.safetensors"
    save_file({f"t{number}": np.full(100 * MIB, number, "u1") for number in range(4)}, path)
    yield folder
    path.unlink()


@both_mounts
@pytest.mark.parametrize("strategy", ["auto", "pread", "direct"])
def test_tensors_larger_than_the_budget_are_not_read_ahead(large_tensors, tmp_path, strategy, direct):
    """The program has room for two tensors: one in use, and the next one."""
    program = PROGRAMS / "weights_memory/streams_large_tensors.py"
    with (
        real.slow_fuse(large_tensors, tmp_path / "slow", direct_io=direct) as slow,
        memory_limit(LARGE_LIMIT_BYTES) as wrapper,
    ):
        assert output_of(program, slow.path, strategy, wrapper=wrapper) == "0 1 2 3"


@pytest.mark.parametrize("mode", ["shared", "private", "read"])
@pytest.mark.parametrize("by", ["by_name", "by_safe_open"])
def test_tensors_that_are_used_one_by_one_take_a_lead_and_themselves(cold_checkpoint, by, mode):
    extra_bytes = by_numpy(cold_checkpoint, by=by, mmap_mode=mode)
    own_bytes = NUMPY_LIMIT_BYTES // LEAD_SHARE + LARGEST_BYTES if mode == "read" else 0
    assert extra_bytes <= own_bytes + SLACK_BYTES


@both_mounts
@pytest.mark.parametrize("by", ["by_stream", "by_warm", "by_name", "by_safe_open"])
def test_a_mount_is_read_in_little_memory(checkpoint, tmp_path, by, direct):
    with real.slow_fuse(checkpoint, tmp_path / "slow", direct_io=direct) as slow:
        extra_bytes = by_numpy(slow.path, by=by)
    share = BUDGET_SHARE if by in ("by_stream", "by_warm") else LEAD_SHARE
    assert extra_bytes <= NUMPY_LIMIT_BYTES // share + LARGEST_BYTES + SLACK_BYTES
    assert slow.counts["read_bytes"] >= TOTAL_BYTES
    if direct:
        assert slow.counts["read_bytes"] <= MOST_READ_DIRECTLY * TOTAL_BYTES


def test_streams_of_torch_tensors_stay_within_their_budget(checkpoint):
    strategies = ["auto", "mapped", "ahead", "pread", "direct"]
    ways = [{"by": "by_stream", "strategy": strategy} for strategy in strategies]
    most_bytes = TORCH_LIMIT_BYTES // BUDGET_SHARE + LARGEST_BYTES + SLACK_BYTES
    extra_bytes = dict(zip(strategies, by_torch(checkpoint, *ways), strict=True))
    assert max(extra_bytes.values()) <= most_bytes, extra_bytes


def test_torch_tensors_over_a_file_take_no_memory_of_their_own(checkpoint):
    ways = [{"by": "by_safe_open"}, {"by": "by_safe_open", "mmap_mode": "private"}]
    assert max(by_torch(checkpoint, *ways)) <= SLACK_BYTES


def test_torch_tensors_that_are_read_take_a_lead_and_themselves(checkpoint):
    (extra_bytes,) = by_torch(checkpoint, {"by": "by_safe_open", "mmap_mode": "read"})
    assert extra_bytes <= TORCH_LIMIT_BYTES // LEAD_SHARE + LARGEST_BYTES + SLACK_BYTES


@both_mounts
@pytest.mark.parametrize("by", ["by_stream", "by_safe_open"])
def test_torch_reads_a_mount_in_little_memory(checkpoint, tmp_path, by, direct):
    with real.slow_fuse(checkpoint, tmp_path / "slow", direct_io=direct) as slow:
        (extra_bytes,) = used("uses_torch.py", slow.path, TORCH_LIMIT_BYTES, {"by": by})
    share = BUDGET_SHARE if by == "by_stream" else LEAD_SHARE
    assert extra_bytes <= TORCH_LIMIT_BYTES // share + LARGEST_BYTES + SLACK_BYTES
    assert slow.counts["read_bytes"] >= TOTAL_BYTES
    if direct:
        assert slow.counts["read_bytes"] <= MOST_READ_DIRECTLY * TOTAL_BYTES


@pytest.mark.parametrize(("device", "assign"), [("cpu", False), ("meta", False), ("meta", True)])
def test_a_module_is_filled_without_a_second_copy(checkpoint, device, assign):
    numbers = list(range(22, 30))
    way = {"by": "by_load_into", "numbers": numbers, "device": device, "assign": assign}
    (extra_bytes,) = by_torch(checkpoint, way)
    model_bytes = sum(map(nbytes_of, numbers))
    most_bytes = model_bytes + TORCH_LIMIT_BYTES // BUDGET_SHARE + LARGEST_BYTES + SLACK_BYTES
    assert extra_bytes <= most_bytes < 2 * model_bytes

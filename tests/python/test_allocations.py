"""Failed large allocations raise exceptions, and the process survives."""

import json
import shutil
import subprocess
from pathlib import Path

import numpy as np
import pytest
import safetensors.numpy

from support import real
from support.process import PROGRAMS, output_of

SOURCE = Path(__file__).parents[1] / "c/failing_malloc.c"
MIB = 1 << 20
# Each scenario, and the least number of large allocations that it must make.
SCENARIOS = {
    "headers": 3,
    "index": 3,
    "lead": 0,
    "lead of many": 3,
    "column slices": 1,
    "row slices": 0,
    "stream": 0,
    "stream of many": 1,
    "stream of columns": 1,
    "warm": 0,
    "checksums": 1,
    "read": 1,
    "warm a file": 0,
    "residency": 1,
}


@pytest.fixture(scope="module")
def failing_malloc(tmp_path_factory):
    library = tmp_path_factory.mktemp("library") / "failing_malloc.so"
    command = [real.need_tool("cc"), "-shared", "-fPIC", "-O1", "-o", library, SOURCE]
    subprocess.run(command, check=True, capture_output=True)
    return library


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("allocations")
    tensors = {f"t{number}": np.full((512, 2048), number, "u1") for number in range(4)}
    safetensors.numpy.save_file(tensors, folder / "plain.safetensors")
    small = {f"tensor.{number:06}": np.zeros(1, "u1") for number in range(10_000)}
    safetensors.numpy.save_file(small, folder / "many.safetensors")
    large = {f"tensor.{number:06}": np.ones(300, "u1") for number in range(10_000)}
    safetensors.numpy.save_file(large, folder / "lead.safetensors")
    (folder / "shards").mkdir()
    shutil.copy(folder / "many.safetensors", folder / "shards/model-00001-of-00002.safetensors")
    other = {f"other.{number:06}": np.zeros(1, "u1") for number in range(10_000)}
    safetensors.numpy.save_file(other, folder / "shards/model-00002-of-00002.safetensors")
    shutil.copytree(folder / "shards", folder / "indexed")
    names = {name: f"model-0000{1 + (name < 'p')}-of-00002.safetensors" for name in [*small, *other]}
    index = folder / "indexed/model.safetensors.index.json"
    index.write_text(json.dumps({"metadata": {}, "weight_map": names}))
    with open(folder / "sparse", "wb") as file:
        file.truncate(1024 * MIB)
    return folder


@pytest.mark.parametrize(("scenario", "least"), SCENARIOS.items(), ids=SCENARIOS)
def test_a_large_allocation_that_fails_is_an_exception(folder, failing_malloc, tmp_path, scenario, least):
    program = PROGRAMS / "allocations/fail_each.py"
    with real.slow_fuse(folder, tmp_path / "slow") as slow:
        lines = output_of(
            program, scenario, folder, slow.path, LD_PRELOAD=str(failing_malloc), RUST_BACKTRACE="1"
        ).splitlines()
    word, failed = lines[-1].split()
    assert word == "passed"
    assert int(failed) >= least


@pytest.mark.parametrize(
    ("left_bytes", "ending"),
    [(3 * MIB, "OSError [Errno 12] cannot start a thread"), (64 * MIB, "done")],
    ids=["too little", "enough"],
)
def test_no_thread_takes_the_last_bytes_of_the_address_space(folder, left_bytes, ending):
    """In a new thread, the standard library and glibc abort the process if a small allocation fails."""
    program = PROGRAMS / "allocations/few_bytes_left.py"
    assert output_of(program, folder / "plain.safetensors", left_bytes).startswith(ending)

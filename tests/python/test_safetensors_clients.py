"""Client code on pagestream: the parts of popular packages that read and write safetensors.

Unmodified programs on a slow mount have many requests in flight, and read each byte once.
"""

import json
import os
import signal
import subprocess
import sys

import pytest

from support.process import PROGRAMS
from support.slow_mounts import slow_mounts

pytestmark = pytest.mark.frameworks

FOLDER = PROGRAMS / "safetensors_slow_clients"
# The limit on reads per byte. Most bytes are read once, but some clients close a file and reopen it. On a
# busy machine, the file may stay closed for longer than its read-ahead is kept, and some of it is read again.
MOST_READ = 1.9
LLAMA = [
    "transformers_from_pretrained",
    "transformers_with_little_memory",
    "accelerate_dispatches",
    "accelerate_opens_for_each_tensor",
    "torchs_checkpoint_reader",
    "as_vllm",
    "as_sglang",
    "as_a_rank_of_transformers",
]


class Programs:
    """Runs programs in forks of a single process that has already imported the frameworks."""

    def __init__(self, *arguments):
        # A fork would lose the threads of a library.
        variables = {"HF_HUB_OFFLINE": "1", "TOKENIZERS_PARALLELISM": "false", "OPENBLAS_NUM_THREADS": "1"}
        pipe = subprocess.PIPE
        self._server = subprocess.Popen(
            [sys.executable, str(FOLDER / "forks.py"), *arguments],
            stdin=pipe,
            stdout=pipe,
            text=True,
            env={**os.environ, **variables},
            start_new_session=True,
        )

    def lines(self, program, *arguments):
        """Returns the lines that a program prints. The last lines are digests, one for each mount."""
        print(json.dumps([program, *map(str, arguments)]), file=self._server.stdin, flush=True)
        printed, status = json.loads(self._server.stdout.readline())
        assert status == 0, printed
        return printed.splitlines()

    def __enter__(self):
        return self

    def __exit__(self, *_exception):
        # A child that hangs ends too.
        os.killpg(self._server.pid, signal.SIGKILL)
        self._server.communicate()


@pytest.fixture(scope="module")
def programs():
    with Programs() as found:
        yield found


@pytest.fixture(scope="module")
def installed():
    """Programs that called `install` before they imported anything else."""
    with Programs("install") as found:
        yield found


every_order = pytest.mark.parametrize("order", ["first", "last"], ids=["installed first", "installed last"])


@pytest.fixture
def run(programs, installed):
    """Runs a client that calls `install` before or after it imports its packages.

    The client must have opened files through pagestream.
    """

    def run(program, *arguments, order="first"):
        forks = installed if order == "first" else programs
        return forks.lines(f"../safetensors_clients/{program}.py", *arguments, order)[-1]

    return run


@every_order
def test_transformers_saves_in_shards_loads_and_trains(run, tmp_path, order):
    assert run("transformers_saves_loads_and_trains", tmp_path, order=order) == "well"


@every_order
def test_peft_saves_and_loads_an_adapter(run, tmp_path, order):
    assert run("peft_saves_and_loads", tmp_path, order=order) == "well"


def test_diffusers_saves_and_loads_a_model(run, tmp_path):
    assert run("diffusers_saves_and_loads", tmp_path) == "well"


@every_order
def test_accelerate_dispatches_with_offload_to_disk(run, tmp_path, order):
    folder, offload = tmp_path / "model", tmp_path / "offload"
    folder.mkdir()
    assert run("accelerate_offloads", folder, offload, order=order) == "well"


def test_huggingface_hub_saves_and_loads_a_model(run, tmp_path):
    assert run("huggingface_hub_saves_and_loads", tmp_path) == "well"


def test_torchs_checkpoint_reader_reads_by_ours(run, tmp_path):
    # Here torch is the client, so `install` runs before torch is imported.
    assert run("torchs_checkpoint_reader_reads", tmp_path) == "well"


@pytest.fixture(scope="module")
def llama(programs, tmp_path_factory):
    folder = tmp_path_factory.mktemp("llama")
    return folder, programs.lines("made.py", "llama", folder)[-1]


@pytest.fixture(scope="module")
def unet(programs, tmp_path_factory):
    folder = tmp_path_factory.mktemp("unet")
    return folder, programs.lines("made.py", "unet", folder)[-1]


def loaded(programs, way, made, tmp_path):
    """Loads a model from the slow mounts. Returns the mounts and the size of the files."""
    folder, digest = made
    with slow_mounts(folder, tmp_path) as (mounts, total_bytes):
        assert programs.lines("loading.py", way, *[slow.path for slow in mounts])[-2:] == [digest] * 2
    return mounts, total_bytes


@pytest.mark.parametrize("way", LLAMA)
def test_a_language_model(way, installed, llama, tmp_path):
    mounts, total_bytes = loaded(installed, way, llama, tmp_path)
    for slow in mounts:
        assert slow.counts["most_in_flight"] >= 8
        assert total_bytes <= slow.counts["read_bytes"] <= MOST_READ * total_bytes
        if way == "as_a_rank_of_transformers":
            # Reopening a file drops its cached pages. The lead reopens it if a program asks for a whole
            # tensor before any part, which depends on the order of threads.
            assert slow.counts["openings"] < 2 * len(list(llama[0].glob("*.safetensors")))


def test_ranks_of_tensor_parallelism(installed, llama, tmp_path):
    folder, digest = llama
    with slow_mounts(folder, tmp_path) as (mounts, total_bytes):
        paths = [slow.path for slow in mounts]
        assert installed.lines("tensor_parallel.py", tmp_path / "rendezvous", *paths)[-2:] == [digest] * 2
    for slow in mounts:
        assert slow.counts["most_in_flight"] >= 8
        # The split tensors are half of all bytes. Two ranks that open a FUSE file drop each other's pages.
        assert 0.9 * total_bytes <= slow.counts["read_bytes"] <= MOST_READ * total_bytes


@pytest.mark.parametrize("kind", ["accelerate", "transformers"])
def test_layers_that_stay_on_disk(kind, programs, llama, tmp_path):
    folder, _ = llama
    with slow_mounts(folder, tmp_path) as (mounts, total_bytes):
        paths = [slow.path for slow in mounts]
        expected, *found = programs.lines("offloading.py", kind, tmp_path / "offloaded", folder, *paths)[-3:]
    assert found == [expected] * 2
    for slow in mounts:
        assert slow.counts["most_in_flight"] >= 8
        # transformers reads everything when it loads, and half of it for each of two forward passes.
        # accelerate reads everything once.
        assert total_bytes <= slow.counts["read_bytes"] <= 2 * MOST_READ * total_bytes


def test_diffusers(installed, unet, tmp_path):
    mounts, total_bytes = loaded(installed, "diffusers_from_pretrained", unet, tmp_path)
    for slow in mounts:
        assert slow.counts["most_in_flight"] >= 10
        assert total_bytes <= slow.counts["read_bytes"] <= MOST_READ * total_bytes


def test_peft(programs, installed, tmp_path):
    folder = tmp_path / "adapter"
    folder.mkdir()
    digest = programs.lines("made_adapter.py", folder)[-1]
    mounts, total_bytes = loaded(installed, "peft_loads_an_adapter", (folder, digest), tmp_path)
    for slow in mounts:
        assert slow.counts["most_in_flight"] >= 10
        assert total_bytes <= slow.counts["read_bytes"] <= MOST_READ * total_bytes

"""Unmodified programs on a slow mount: many requests are on their way, and each byte is read once."""

import pytest

from support.process import PROGRAMS, output_of
from support.slow_mounts import slow_mounts

pytestmark = pytest.mark.timeout(300)

FOLDER = PROGRAMS / "safetensors_slow_clients"
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


def output(program, *arguments):
    """Returns the lines that a program prints. The last ones are digests, one for each mount."""
    environment = {"HF_HUB_OFFLINE": "1", "TOKENIZERS_PARALLELISM": "false"}
    return output_of(FOLDER / program, *arguments, timeout_seconds=280, **environment).splitlines()


@pytest.fixture(scope="module")
def llama(tmp_path_factory):
    folder = tmp_path_factory.mktemp("llama")
    return folder, output("made.py", "llama", folder)[-1]


@pytest.fixture(scope="module")
def unet(tmp_path_factory):
    folder = tmp_path_factory.mktemp("unet")
    return folder, output("made.py", "unet", folder)[-1]


def loaded(way, made, tmp_path):
    """Loads a model from the slow mounts. Returns these, and the bytes of the files."""
    folder, digest = made
    with slow_mounts(folder, tmp_path) as (mounts, total_bytes):
        assert output("loading.py", way, *[slow.path for slow in mounts])[-2:] == [digest] * 2
    return mounts, total_bytes


@pytest.mark.parametrize("way", LLAMA)
def test_a_language_model(way, llama, tmp_path):
    mounts, total_bytes = loaded(way, llama, tmp_path)
    for slow in mounts:
        assert slow.counts["most_in_flight"] >= 8
        assert total_bytes <= slow.counts["read_bytes"] <= 1.1 * total_bytes
        if way == "as_a_rank_of_transformers":
            # A file that is opened again drops its cached pages. A lead does that where a whole tensor is
            # asked for before any part, as the order of threads may have it.
            assert slow.counts["openings"] < 2 * len(list(llama[0].glob("*.safetensors")))


def test_ranks_of_tensor_parallelism(llama, tmp_path):
    folder, digest = llama
    with slow_mounts(folder, tmp_path) as (mounts, total_bytes):
        paths = [slow.path for slow in mounts]
        assert output("tensor_parallel.py", tmp_path / "rendezvous", *paths)[-2:] == [digest] * 2
    for slow in mounts:
        assert slow.counts["most_in_flight"] >= 8
        # What is split is half of all. Two ranks that open a FUSE file drop each other's pages.
        assert 0.9 * total_bytes <= slow.counts["read_bytes"] <= 1.6 * total_bytes


@pytest.mark.parametrize("kind", ["accelerate", "transformers"])
def test_layers_that_stay_on_disk(kind, llama, tmp_path):
    folder, _ = llama
    with slow_mounts(folder, tmp_path) as (mounts, total_bytes):
        paths = [slow.path for slow in mounts]
        expected, *found = output("offloading.py", kind, tmp_path / "offloaded", folder, *paths)[-3:]
    assert found == [expected] * 2
    for slow in mounts:
        assert slow.counts["most_in_flight"] >= 8
        # transformers reads all when it loads, and half for each of two forwards. accelerate reads all once.
        # On a busy machine a file is closed for longer than its lead is kept, and some of it is read again.
        assert total_bytes <= slow.counts["read_bytes"] <= 2.2 * total_bytes


def test_diffusers(unet, tmp_path):
    mounts, total_bytes = loaded("diffusers_from_pretrained", unet, tmp_path)
    for slow in mounts:
        assert slow.counts["most_in_flight"] >= 10
        assert total_bytes <= slow.counts["read_bytes"] <= 1.1 * total_bytes


def test_peft(tmp_path):
    folder = tmp_path / "adapter"
    folder.mkdir()
    digest = output("made_adapter.py", folder)[-1]
    mounts, total_bytes = loaded("peft_loads_an_adapter", (folder, digest), tmp_path)
    for slow in mounts:
        assert slow.counts["most_in_flight"] >= 10
        assert total_bytes <= slow.counts["read_bytes"] <= 1.1 * total_bytes

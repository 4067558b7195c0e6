"""Unmodified programs on a slow mount: many requests are on their way, and each byte is read once."""

import pytest

from pagestream import MappedFile

from support import real
from support.process import PROGRAMS, output_of

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
both_mounts = pytest.mark.parametrize("direct", [False, True], ids=["cached", "direct_io"])


def output(program, *arguments):
    environment = {"HF_HUB_OFFLINE": "1", "TOKENIZERS_PARALLELISM": "false"}
    return output_of(FOLDER / program, *arguments, timeout_seconds=280, **environment).splitlines()[-1]


@pytest.fixture(scope="module")
def llama(tmp_path_factory):
    folder = tmp_path_factory.mktemp("llama")
    return folder, output("made.py", "llama", folder)


@pytest.fixture(scope="module")
def unet(tmp_path_factory):
    folder = tmp_path_factory.mktemp("unet")
    return folder, output("made.py", "unet", folder)


def evicted_bytes(folder):
    """Drops the files from the page cache. Returns their size."""
    total_bytes = 0
    for path in folder.glob("*.safetensors"):
        with MappedFile(path) as file:
            file.evict()
            total_bytes += file.size
    return total_bytes


def loaded(way, made, tmp_path, direct):
    """Loads a model from a slow mount. Returns what the mount has counted, and the bytes of the files."""
    folder, digest = made
    total_bytes = evicted_bytes(folder)
    with real.slow_fuse(folder, tmp_path / "slow", delay_ms=10, direct_io=direct) as slow:
        assert output("loading.py", way, slow.path) == digest
    return slow.counts, total_bytes


@both_mounts
@pytest.mark.parametrize("way", LLAMA)
def test_a_language_model(way, llama, tmp_path, direct):
    counts, total_bytes = loaded(way, llama, tmp_path, direct)
    assert counts["most_in_flight"] >= 8
    assert total_bytes <= counts["read_bytes"] <= 1.1 * total_bytes
    if way == "as_a_rank_of_transformers":
        # A file that is opened again drops its cached pages. A lead does that where a whole tensor is
        # asked for before any part, as the order of threads may have it.
        assert counts["openings"] < 2 * len(list(llama[0].glob("*.safetensors")))


@both_mounts
def test_ranks_of_tensor_parallelism(llama, tmp_path, direct):
    folder, digest = llama
    total_bytes = evicted_bytes(folder)
    with real.slow_fuse(folder, tmp_path / "slow", delay_ms=10, direct_io=direct) as slow:
        assert output("tensor_parallel.py", slow.path, tmp_path / "rendezvous") == digest
    assert slow.counts["most_in_flight"] >= 8
    # What is split is half of all. Two ranks that open a FUSE file drop each other's pages.
    assert 0.9 * total_bytes <= slow.counts["read_bytes"] <= 1.6 * total_bytes


@both_mounts
@pytest.mark.parametrize("kind", ["accelerate", "transformers"])
def test_layers_that_stay_on_disk(kind, llama, tmp_path, direct):
    folder, _ = llama
    expected = output("offloading.py", kind, folder, tmp_path / "offloaded")
    total_bytes = evicted_bytes(folder)
    with real.slow_fuse(folder, tmp_path / "slow", delay_ms=10, direct_io=direct) as slow:
        assert output("offloading.py", kind, slow.path, tmp_path / "of slow", "--installed") == expected
    assert slow.counts["most_in_flight"] >= 8
    # transformers reads all when it loads, and half for each of two forwards. accelerate reads all once.
    # On a busy machine a file is closed for longer than its lead is kept, and some of it is read again.
    assert total_bytes <= slow.counts["read_bytes"] <= 2.2 * total_bytes


@both_mounts
def test_diffusers(unet, tmp_path, direct):
    counts, total_bytes = loaded("diffusers_from_pretrained", unet, tmp_path, direct)
    assert counts["most_in_flight"] >= 10
    assert total_bytes <= counts["read_bytes"] <= 1.1 * total_bytes


@both_mounts
def test_peft(tmp_path, direct):
    folder = tmp_path / "adapter"
    folder.mkdir()
    digest = output("made_adapter.py", folder)
    counts, total_bytes = loaded("peft_loads_an_adapter", (folder, digest), tmp_path, direct)
    assert counts["most_in_flight"] >= 10
    assert total_bytes <= counts["read_bytes"] <= 1.1 * total_bytes

"""Hugging Face repository ids: their snapshots in the local cache."""

import errno
import os
import pickle

import numpy as np
import pytest

from pagestream import open_checkpoint
from pagestream.safetensors import safe_open
from pagestream.safetensors.numpy import load_file, save_file
from pagestream.torch import load_into, load_state_dict, stream_checkpoint

from support.hub import downloaded, empty_cache


@pytest.fixture
def cache(tmp_path, monkeypatch):
    return empty_cache(tmp_path, monkeypatch)


@pytest.mark.parametrize("name", ["gpt2", "meta-llama/Llama-3.1-8B", "a_b/c-d.e"])
def test_the_id_of_a_repository_is_its_snapshot(cache, name):
    snapshot = downloaded(cache, name)
    with open_checkpoint(name) as weights:
        assert weights.files == (f"{snapshot}/model.safetensors",)
        assert pickle.loads(pickle.dumps(weights)).files == weights.files
    from huggingface_hub import snapshot_download

    assert snapshot_download(name, cache_dir=cache, local_files_only=True) == snapshot


def test_functions_of_torch_take_an_id(cache):
    import torch

    downloaded(cache, "org/model")
    module = torch.nn.Linear(2, 2)
    assert load_into(module, "org/model").missing == []
    assert module.weight.tolist() == load_state_dict("org/model")["weight"].tolist() == [[5.0, 5.0]] * 2
    assert len(stream_checkpoint("org/model", device="cpu")) == 2


@pytest.mark.parametrize(
    ("variables", "place"),
    [
        ({"XDG_CACHE_HOME": "{}/x"}, "x/huggingface/hub"),
        ({"XDG_CACHE_HOME": "{}/x", "HF_HOME": "~/h"}, "h/hub"),
        ({"HF_HOME": "~/h", "HUGGINGFACE_HUB_CACHE": "$HOME/old"}, "old"),
        ({"HF_HUB_CACHE": "~/new", "HUGGINGFACE_HUB_CACHE": "~/old"}, "new"),
    ],
    ids=str,
)
def test_variables_say_where_the_cache_is(cache, tmp_path, monkeypatch, variables, place):
    for name, value in variables.items():
        monkeypatch.setenv(name, value.format(tmp_path))
    snapshot = downloaded(tmp_path / place, "gpt2")
    assert open_checkpoint("gpt2").files == (f"{snapshot}/model.safetensors",)


def test_a_path_comes_before_a_repository(cache, tmp_path):
    downloaded(cache, "org/model")
    os.makedirs("org/model")
    save_file({"local": np.zeros(1)}, "org/model/model.safetensors")
    assert list(open_checkpoint("org/model")) == ["local"]
    save_file({"file": np.zeros(1)}, "gpt2")
    assert list(open_checkpoint("gpt2")) == ["file"]
    os.unlink("gpt2")
    downloaded(cache, "gpt2")
    os.symlink("nowhere", "gpt2")
    with pytest.raises(FileNotFoundError, match="cannot open"):
        open_checkpoint("gpt2")


@pytest.mark.parametrize("name", ["gpt2", "org/model"])
def test_a_missing_repository_says_how_to_download_it(cache, name):
    command = f"download a Hugging Face repository with `hf download {name}`"
    nowhere = f"no such file or folder, and no snapshot of this name in {cache}; {command}"

    def told():
        with pytest.raises(FileNotFoundError) as caught:
            open_checkpoint(name)
        assert (caught.value.errno, caught.value.filename) == (errno.ENOENT, name)
        return caught.value.strerror

    assert told() == nowhere
    snapshot = downloaded(cache, name, files=("config.json",))
    assert told() == f"no such file or folder, and {snapshot} has no safetensors files; {command}"
    os.rename(snapshot, f"{snapshot}-gone")
    assert told() == nowhere


@pytest.mark.parametrize("name", ["gpt2", "org/model"])
@pytest.mark.usefixtures("cache")
def test_a_repository_in_place_of_a_file_says_how_to_download_and_open_it(name):
    for function in (lambda path: safe_open(path, "np"), load_file):
        with pytest.raises(FileNotFoundError) as caught:
            function(name)
        assert caught.value.strerror.endswith(
            f"or download a Hugging Face repository with `hf download {name}`, and open it with "
            f'open_checkpoint("{name}")'
        )
        with pytest.raises(FileNotFoundError) as caught:
            function(f"{name}.safetensors")
        assert "hf download" not in caught.value.strerror


def test_other_paths_are_not_ids(cache):
    for path in (
        *("model.safetensors", "org/model.safetensors", "model.safetensors.index.json", "a/b/c", "./gpt2"),
        *("/gpt2", "org/", "-model", "a--b", "org/a..b", b"gpt2", ["gpt2"]),
    ):
        with pytest.raises(FileNotFoundError, match="cannot open"):
            open_checkpoint(path)

"""`~` in paths: every function that takes a path expands it."""

import os
from pathlib import Path

import numpy as np
import pytest
import torch

import pagestream
from pagestream import MappedFile, TokenLoader, open_checkpoint, open_tokens, write_tokens
from pagestream._common.paths import expanded
from pagestream.safetensors import numpy as numpy_files
from pagestream.safetensors import safe_open
from pagestream.safetensors import torch as torch_files
from pagestream.torch import (
    HuggingFaceStorageReader,
    TokenDataset,
    load_into,
    load_state_dict,
    stream_checkpoint,
)


@pytest.fixture
def home(tmp_path, monkeypatch):
    (tmp_path / "home").mkdir()
    (tmp_path / "work").mkdir()
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.chdir(tmp_path / "work")
    return tmp_path / "home"


def test_tokens_are_written_and_read_below_the_home_directory(home, tmp_path):
    assert write_tokens("~/a.bin", range(64), dtype="u2") == 64
    assert (home / "a.bin").stat().st_size == 128
    assert write_tokens("~/m.idx", range(4), dtype="u2", format="megatron") == 4
    assert (home / "m.bin").stat().st_size == 8
    for path in ("~/a.bin", b"~/a.bin", ["~/a.bin"], "~/a*.bin"):
        with open_tokens(path) as tokens:
            assert [shard.path for shard in tokens.shards] == [str(home / "a.bin")]
    with TokenLoader("~/a.bin", sequence_length=4, batch_size=1) as loader:
        assert len(next(loader).x) == 1
    assert len(TokenDataset("~/a.bin", 4)) == 60
    with MappedFile("~/a.bin") as file:
        assert (file.path, file.size) == (str(home / "a.bin"), 128)
    with pytest.raises(ValueError, match="one Megatron pair"):
        open_tokens(["~/m.idx", str(home / "m.bin")])
    for name in ("train.bin", "val.bin"):
        os.link(home / "a.bin", home / name)
    with pytest.raises(ValueError, match="several splits"):
        open_tokens("~")
    assert [*(tmp_path / "work").iterdir()] == []


def test_weights_are_written_and_read_below_the_home_directory(home, tmp_path):
    module = torch.nn.Linear(2, 2)
    torch_files.save_file(module.state_dict(), "~/model.safetensors")
    numpy_files.save_file({"a": np.zeros(2)}, "~/a.safetensors")
    assert numpy_files.load_file("~/a.safetensors")["a"].shape == (2,)
    assert torch_files.load_file("~/model.safetensors").keys() == {"weight", "bias"}
    with safe_open("~/model.safetensors", "np") as file:
        assert file.keys() == ["bias", "weight"]
    for path in ("~/model.safetensors", "~", ["~/model.safetensors"]):
        with open_checkpoint(path, cache_root="~") as weights:
            assert weights.files == (str(home / "model.safetensors"),)
    assert len(load_state_dict("~")) == len([*stream_checkpoint("~", device="cpu")]) == 2
    assert load_into(module, "~/model.safetensors").missing == []
    (home / "a.safetensors").unlink()
    reader = HuggingFaceStorageReader("~")
    assert reader.read_metadata().state_dict_metadata.keys() == {"weight", "bias"}
    reader.reset("~/")
    assert reader.read_metadata().state_dict_metadata.keys() == {"weight", "bias"}
    with pytest.raises(FileNotFoundError) as caught:
        safe_open("~/none.safetensors", "np")
    assert caught.value.filename == str(home / "none.safetensors")
    assert [*(tmp_path / "work").iterdir()] == []


def test_an_entry_of_the_current_directory_comes_before_the_home_directory(home, monkeypatch):
    assert expanded("~/x") == str(home / "x")
    assert expanded("~") == str(home)
    assert expanded("a/~/x") == "a/~/x"
    assert expanded(b"~/\xff") == os.fsdecode(f"{home}/".encode() + b"\xff")
    assert expanded("~no-such-user/x") == "~no-such-user/x"
    with pytest.raises(TypeError):
        expanded(3)
    os.mkdir("~")
    assert expanded("~/x") == "~/x"
    pagestream.write_tokens("~/x", [1], dtype="u2")
    assert os.listdir("~") == ["x"]


@pytest.mark.parametrize(
    ("url", "remedy"),
    [
        ("s3://bucket/a.bin", "mount the bucket with mountpoint-s3 or rclone, or download the files"),
        ("gs://bucket/a.bin", "mount the bucket with gcsfuse or rclone, or download the files"),
        ("az://box/a.bin", "mount the container with blobfuse2 or rclone, or download the files"),
        ("hf://org/model", "mount the repository with hf-mount, or download it with `hf download`"),
        ("https://host/a.safetensors", "download the file, and pass its path"),
        ("file:///a.bin", "pass the path without the scheme"),
    ],
)
def test_a_url_is_refused_with_a_way_to_a_path(url, remedy, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    message = f"this is a URL, but pagestream opens files on mounted file systems; {remedy}"
    calls = [
        open_tokens,
        lambda path: open_tokens([path]),
        lambda path: TokenLoader(path, sequence_length=4, batch_size=1),
        open_checkpoint,
        lambda path: open_checkpoint([path]),
        load_state_dict,
        MappedFile,
        lambda path: safe_open(path, "np"),
        numpy_files.load_file,
        lambda path: write_tokens(path, [1], dtype="u2"),
    ]
    for call in calls:
        with pytest.raises(FileNotFoundError) as caught:
            call(url)
        assert (caught.value.strerror, caught.value.filename) == (message, url)
    with pytest.raises(FileNotFoundError, match="this is a URL"):
        open_tokens(Path(url))
    with pytest.raises(FileNotFoundError, match="this is a URL"):
        open_tokens(f"{url}/*.bin")


def test_an_entry_with_the_name_of_a_scheme_is_a_path(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    os.makedirs("s3:/bucket")
    assert write_tokens("s3://bucket/a.bin", range(64), dtype="u2") == 64
    assert len(open_tokens("s3://bucket/a.bin")) == 64
    assert expanded("a:/b") == "a:/b"

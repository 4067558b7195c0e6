"""Paths of the command: folders with several kinds of files, repository ids, URLs."""

import os
import zipfile

import numpy as np
import pytest

from pagestream import open_tokens, write_tokens
from pagestream.safetensors.numpy import save_file

from support.cli import COMMANDS, NOT_VERIFIED, WRONG_USE, facts, in_one_line, pagestream_command
from support.hub import downloaded, empty_cache
from support.process import PROGRAMS, run_python

TENSORS = {"a": np.zeros(4, "f4")}


@pytest.fixture
def cache(tmp_path, monkeypatch):
    return empty_cache(tmp_path, monkeypatch)


def write_token_files(folder, *names):
    folder.mkdir(exist_ok=True)
    for name in names:
        np.arange(640, dtype="u2").tofile(folder / name)
    return folder


class TestFolders:
    def test_several_splits_are_named_as_by_open_tokens(self, tmp_path):
        folder = write_token_files(tmp_path / "data", "train.bin", "val.bin")
        with pytest.raises(ValueError, match="several splits") as refused:
            open_tokens(folder)
        splits = "this folder has files of several splits, training (1), validation (1)"
        remedy = f"pass one split, '{folder}/*train*' or '{folder}/*val*'"
        assert splits in str(refused.value)
        assert remedy in str(refused.value)
        warning = f"{splits}. This command reads all of them, but open_tokens refuses it: {remedy}"
        assert facts("info", folder)["warnings"] == [warning]
        assert facts("verify", folder, exit_code=NOT_VERIFIED)[0]["warnings"] == [warning]
        assert f"warning: {warning}" in in_one_line(pagestream_command("info", folder).stdout)
        [of_pattern] = facts("info", f"{folder}/*.bin")["warnings"]
        assert of_pattern.startswith("this pattern matches files of several splits")
        for path in (folder / "train.bin", f"{folder}/*train*"):
            assert facts("info", path)["warnings"] == []

    def test_token_files_beside_weights_are_named(self, tmp_path):
        folder = write_token_files(tmp_path / "both", "train1.bin", "train2.bin")
        save_file(TENSORS, folder / "model.safetensors")
        with zipfile.ZipFile(folder / "pytorch_model.bin", "w") as archive:  # as torch.save writes it
            archive.writestr("data.pkl", b"")
        warning = (
            "this folder also has 2 token files, train1.bin, …. This command reads the weights alone: name "
            f"the token files, for example {folder}/train1.bin"
        )
        for command in ("info", "check"):
            found = facts(command, folder)
            assert found["warnings"] == [warning]
        assert facts("verify", folder)[0]["warnings"] == [warning]
        (folder / "pytorch_model.bin").rename(folder / "kept")
        [warning] = facts("info", folder, "--format", "raw")["warnings"]
        assert warning == (
            "this folder also has 1 safetensors file, model.safetensors. This command reads the token files "
            "alone: leave --format out for the weights"
        )
        for name in ("train1.bin", "train2.bin"):
            (folder / name).unlink()
        (folder / "kept").rename(folder / "pytorch_model.bin")
        assert facts("info", folder)["warnings"] == []


class TestIds:
    def test_a_repository_in_the_cache_is_its_snapshot(self, cache):
        snapshot = downloaded(cache, "org/model")
        path = f"{snapshot}/model.safetensors"
        assert facts("info", "org/model")["files"] == [path]
        assert facts("check", "org/model")["files"] == 1
        assert facts("verify", "org/model")[0]["files"] == 1
        assert facts("warm", "org/model")["nbytes"] == os.path.getsize(path)
        assert [row["path"] for row in facts("evict", "org/model")] == [path]
        assert [os.path.abspath(row["name"]) for row in facts("residency", "org/model")] == [path]
        assert {row["name"] for row in facts("residency", "--tensors", "org/model")} == {"weight", "bias"}

    @pytest.mark.parametrize("command", COMMANDS)
    def test_repositories_outside_the_cache_can_be_downloaded(self, command, cache):
        found = pagestream_command(command, "org/model")
        assert found.exit_code == WRONG_USE
        assert found.stderr == (
            f"pagestream: org/model: no such file or folder, and no snapshot of this name in {cache}; "
            "download a Hugging Face repository with `hf download org/model`\n"
        )

    def test_a_path_takes_precedence_over_an_id(self, cache):
        downloaded(cache, "org/model")
        os.mkdir("org")
        write_tokens("org/model", [np.arange(64)], dtype="u2", format="megatron")
        assert facts("info", "org/model")["kind"] == "tokens"
        found = pagestream_command("info", "missing.npy")
        assert "hf download" not in found.stderr


@pytest.mark.parametrize("command", COMMANDS)
def test_a_missing_path_is_first_called_missing(command, tmp_path):
    path = tmp_path / "models/llama"
    found = pagestream_command(command, path)
    assert found.exit_code == WRONG_USE
    assert found.stderr.lower().startswith(f"pagestream: {path}: no such file or ".lower())


def test_ctrl_c_at_the_beginning_leaves_no_traceback(tmp_path):
    save_file(TENSORS, tmp_path / "model.safetensors")
    found = run_python(PROGRAMS / "cli/interrupted_early.py", tmp_path)
    assert [line.split()[-1] for line in found.stdout.splitlines()] == ["130"] * 19
    assert found.stderr == ""


@pytest.mark.parametrize("command", [*COMMANDS, "env"])
def test_a_url_is_not_a_path(command):
    found = pagestream_command(command, "s3://bucket/train.bin")
    assert found.exit_code == WRONG_USE
    assert found.stderr == (
        "pagestream: s3://bucket/train.bin: this is a URL, but pagestream opens files on mounted file "
        "systems; mount the bucket with mountpoint-s3 or rclone, or download the files\n"
    )


def test_texts_at_a_url_are_not_read(tmp_path):
    found = pagestream_command("tokenize", "gs://b/a.txt", tmp_path / "a.bin", "--tokenizer", "gpt2")
    assert (found.exit_code, "gcsfuse" in found.stderr) == (WRONG_USE, True)

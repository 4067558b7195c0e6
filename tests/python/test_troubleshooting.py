"""Users get each message in `docs/troubleshooting.md` exactly as quoted."""

import json
import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from pagestream import MappedFile, TokenLoader, open_checkpoint, open_tokens
from pagestream.safetensors import SafetensorError
from pagestream.safetensors.numpy import save_file

PAGE = (Path(__file__).parents[2] / "docs/troubleshooting.md").read_text()
SECTIONS = dict(re.findall(r"^## (.*?)\n(.*?)(?=^## |\Z)", PAGE, re.DOTALL | re.MULTILINE))
WITHOUT_MESSAGE = "No message, but a slow load"
POINTER = "version https://git-lfs.github.com/spec/v1\noid sha256:0a1b\nsize 123\n"


def truncate_while_open():
    file = MappedFile("train.bin")
    os.truncate("train.bin", 100)
    file.read(0, 200)


def read_a_pointer():
    Path("pointer.bin").write_text(POINTER)
    open_tokens("pointer.bin")


def read_another_type():
    np.random.default_rng(1).integers(0, 50_000, 100_000).astype("u4").tofile("wide.bin")
    open_tokens("wide.bin")


def open_a_folder_of_splits():
    np.arange(2000, dtype="u2").tofile("val.bin")
    open_tokens(".")


def ask_for_more_than_there_is():
    TokenLoader("train.bin", sequence_length=16_384, batch_size=8)


def read_an_unknown_id():
    with TokenLoader("train.bin", sequence_length=1024, batch_size=1, vocabulary=50_257) as loader:
        list(loader)


def resume_with_another_seed():
    with TokenLoader("train.bin", sequence_length=16, batch_size=2, seed=1) as loader:
        state = loader.state_dict()
    with TokenLoader("train.bin", sequence_length=16, batch_size=2, seed=2) as loader:
        loader.load_state_dict(state)


def open_a_short_file():
    save_file({"weight": np.ones((1000, 1000), "f4")}, "model.safetensors")
    os.truncate("model.safetensors", 2_000_000)
    open_checkpoint("model.safetensors")


def open_a_checkpoint_without_its_files():
    files = {"a": "model-00001-of-00002.safetensors", "b": "model-00002-of-00002.safetensors"}
    Path("model.safetensors.index.json").write_text(json.dumps({"metadata": {}, "weight_map": files}))
    open_checkpoint(".")


def open_a_url():
    open_tokens("s3://bucket/train.bin")


def open_a_repository_that_was_not_downloaded():
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("HF_HUB_CACHE", str(Path("cache").absolute()))
        open_checkpoint("openai-community/gpt2")


def open_a_document_file_without_its_index():
    np.arange(100, dtype="u2").tofile("c4_text_document.bin")
    open_tokens("c4_text_document.bin")


CAUSES = {
    "The file was truncated": truncate_while_open,
    "A git-LFS pointer": read_a_pointer,
    "The file looks like another type": read_another_type,
    "Several splits in one folder": open_a_folder_of_splits,
    "No batch": ask_for_more_than_there_is,
    "An id that the model does not have": read_an_unknown_id,
    "The state does not belong to this loader": resume_with_another_seed,
    "A checkpoint with a short file": open_a_short_file,
    "A checkpoint with missing files": open_a_checkpoint_without_its_files,
    "A URL in place of a path": open_a_url,
    "A Hugging Face id without a snapshot": open_a_repository_that_was_not_downloaded,
    "A Megatron file without its index": open_a_document_file_without_its_index,
}
# These need their own process or mount.
OTHERS = {
    "The process ends without a message of Python",
    "No such device",
    "pagestream.torch needs PyTorch",
}


def quoted(section):
    """Returns the message of a section, as a regular expression."""
    (message,) = re.findall(r"^```text\n(.*)\n```", SECTIONS[section], re.MULTILINE)
    return ".*".join(map(re.escape, message.split("…")))


def test_each_section_has_a_message_and_a_command():
    assert set(SECTIONS) == {*CAUSES, *OTHERS, WITHOUT_MESSAGE}
    assert len(CAUSES) + len(OTHERS) >= 12
    for title, text in SECTIONS.items():
        assert "```console\n$ " in text
        assert ("```text\n" in text) == (title != WITHOUT_MESSAGE)


@pytest.mark.parametrize("section", CAUSES)
def test_the_message_is_what_a_user_gets(section, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    np.arange(65_536, dtype="u2").tofile("train.bin")
    with pytest.raises((OSError, ValueError, SafetensorError)) as caught:
        CAUSES[section]()
    assert re.fullmatch(quoted(section), f"{caught.type.__name__}: {caught.value}")


def test_a_truncated_map_of_numpy_ends_the_process(tmp_path):
    code = f"""
import os, numpy as np
np.zeros(100_000, "u1").tofile({str(tmp_path / "a")!r})
array = np.memmap({str(tmp_path / "a")!r}, "u1", "r")
os.truncate({str(tmp_path / "a")!r}, 0)
array.sum()
"""
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == -signal.SIGBUS
    assert "135, or -7 in `subprocess`" in SECTIONS["The process ends without a message of Python"]
    assert 128 + signal.SIGBUS == 135


def test_numpy_finds_no_device_where_there_is_direct_io(direct_mount, tmp_path):
    np.zeros(4096, "u1").tofile(tmp_path / "source/a")
    with pytest.raises(OSError, match="device") as caught:
        np.memmap(direct_mount / "a", "u1", "r")
    assert re.fullmatch(quoted("No such device"), f"OSError: {caught.value}")
    assert MappedFile(direct_mount / "a").mode == "private"


def test_the_message_without_torch_is_quoted(monkeypatch):
    """`test_package.py` triggers this message."""
    source = (Path(__file__).parents[2] / "python/pagestream/torch/__init__.py").read_text()
    kind, _, message = quoted("pagestream.torch needs PyTorch").partition(":\\ ")
    assert f"raise {kind}(" in source
    assert re.search(message, source)

"""Repositories in a local Hugging Face cache."""

import numpy as np

from pagestream.safetensors.numpy import save_file

COMMIT = "607a30d783dfa663caf39e06633721c8d4cfcd7e"
VARIABLES = ("HF_HOME", "HF_HUB_CACHE", "HUGGINGFACE_HUB_CACHE", "XDG_CACHE_HOME")


def downloaded(cache, name, files=("model.safetensors",)):
    """Writes a repository in the layout of huggingface_hub: a snapshot of links to blobs."""
    folder = cache / f"models--{name.replace('/', '--')}"
    for each in ("refs", "blobs", f"snapshots/{COMMIT}"):
        (folder / each).mkdir(parents=True)
    (folder / "refs/main").write_text(COMMIT)
    snapshot = folder / "snapshots" / COMMIT
    for number, file in enumerate(files):
        save_file(
            {"weight": np.full((2, 2), 5.0, "f4"), "bias": np.zeros(2, "f4")}, folder / f"blobs/{number}"
        )
        (snapshot / file).symlink_to(f"../../blobs/{number}")
    return str(snapshot)


def empty_cache(tmp_path, monkeypatch):
    """Returns the cache of a user without files, and changes to an empty folder."""
    for name in VARIABLES:
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))
    (tmp_path / "work").mkdir()
    monkeypatch.chdir(tmp_path / "work")
    return tmp_path / ".cache/huggingface/hub"

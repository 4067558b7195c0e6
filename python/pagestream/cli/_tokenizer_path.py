"""Finds the ``tokenizer.json`` of a model, in its folder or in the cache of Hugging Face: no network.

The cache has a folder for each model (https://huggingface.co/docs/huggingface_hub/guides/manage-cache):

```text
models--openai-community--gpt2/
    refs/main                            the name of a snapshot
    snapshots/607a30d7.../tokenizer.json
```
"""

from __future__ import annotations

import errno
import os
import re

_FILE = "tokenizer.json"
_HUB_NAME = re.compile(r"[\w.-]+(/[\w.-]+)?", re.ASCII)


def tokenizer_path(name: str) -> str:
    """Returns the path of a tokenizer.

    Args:
        name: A ``tokenizer.json``, a folder that has one, or the name of a model in the cache of Hugging
            Face, such as ``openai-community/gpt2``. A path goes before a name.

    Raises:
        FileNotFoundError: There is no such tokenizer.
    """
    if os.path.isfile(name):
        return name
    if os.path.isdir(name):
        return _in_folder(name)
    cache = _cache()
    if _HUB_NAME.fullmatch(name):
        folder = os.path.join(cache, f"models--{name.replace('/', '--')}")
        if os.path.isdir(folder):
            return _in_folder(folder)
    message = (
        f"no such tokenizer; expected a {_FILE}, a folder with one, or a model in {cache}, such as "
        "openai-community/gpt2, which `hf download` puts there"
    )
    raise FileNotFoundError(errno.ENOENT, message, name)


def _in_folder(folder: str) -> str:
    """Returns the tokenizer of a folder with a model, or of a folder of the cache with its snapshots."""
    holder = _snapshot(folder) or folder
    path = os.path.join(holder, _FILE)
    if not os.path.isfile(path):
        message = (
            f"no such tokenizer; the folder has no {_FILE}; transformers writes one: "
            "AutoTokenizer.from_pretrained(...).save_pretrained(...)"
        )
        raise FileNotFoundError(errno.ENOENT, message, holder)
    return path


def _snapshot(folder: str) -> str | None:
    """Returns the snapshot of ``main`` in a folder of the cache, or the only snapshot."""
    snapshots = os.path.join(folder, "snapshots")
    if not os.path.isdir(snapshots):
        return None
    try:
        with open(os.path.join(folder, "refs", "main")) as file:
            return os.path.join(snapshots, file.read().strip())
    except FileNotFoundError:
        pass
    found = sorted(os.listdir(snapshots))
    if len(found) == 1:
        return os.path.join(snapshots, found[0])
    message = f"no snapshot of main among {', '.join(found) or 'none'}; name the folder of a snapshot"
    raise FileNotFoundError(errno.ENOENT, message, snapshots)


def _cache() -> str:
    """Returns the folder that huggingface_hub puts models into."""
    if folder := os.environ.get("HF_HUB_CACHE"):
        return os.path.expanduser(folder)
    base = os.environ.get("XDG_CACHE_HOME") or os.path.join("~", ".cache")
    home = os.environ.get("HF_HOME") or os.path.join(base, "huggingface")
    return os.path.join(os.path.expanduser(home), "hub")

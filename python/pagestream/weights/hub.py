"""Hugging Face repositories that were downloaded: the folder of one in the local cache.

Layout: https://huggingface.co/docs/huggingface_hub/guides/manage-cache
"""

from __future__ import annotations

import errno
import os
import re

from pagestream._common.paths import expanded

# "gpt2", "meta-llama/Llama-3.1-8B". Names of files are none.
_REPOSITORY = re.compile(
    r"(?!.*(--|\.\.))(\w[\w.-]*/)?\w[\w.-]*(?<!\.safetensors)(?<!\.json)(?<!\.bin)(?<!\.pt)", re.ASCII
)
_REVISION = "main"


def local_folder(name: str) -> str:
    """Returns the snapshot of a repository in the local cache. Nothing is downloaded.

    Args:
        name: A path, or the id of a repository such as ``"meta-llama/Llama-3.1-8B"``.

    Returns:
        The path itself, if it is there or cannot be an id; else the snapshot of the branch ``main``.

    Raises:
        FileNotFoundError: There is no such path, and no snapshot with safetensors files.
    """
    if _REPOSITORY.fullmatch(name) is None or os.path.lexists(name):
        return name
    cache = _cache()
    folder = os.path.join(cache, f"models--{name.replace('/', '--')}")
    remedy = f"download a Hugging Face repository with `hf download {name}`"
    try:
        with open(os.path.join(folder, "refs", _REVISION), encoding="ascii") as file:
            snapshot = os.path.join(folder, "snapshots", file.read().strip())
        names = os.listdir(snapshot)
    except FileNotFoundError:
        message = f"no such file or folder, and no snapshot of this name in {cache}; {remedy}"
        raise FileNotFoundError(errno.ENOENT, message, name) from None
    if not any(each.endswith((".safetensors", ".safetensors.index.json")) for each in names):
        message = f"no such file or folder, and {snapshot} has no safetensors files; {remedy}"
        raise FileNotFoundError(errno.ENOENT, message, name)
    return snapshot


def _cache() -> str:
    """Returns the folder of the cache, by the variables of huggingface_hub."""
    home = os.path.join(os.environ.get("XDG_CACHE_HOME", "~/.cache"), "huggingface")
    default = os.path.join(os.environ.get("HF_HOME", home), "hub")
    # The second name is an old one.
    found = os.environ.get("HF_HUB_CACHE", os.environ.get("HUGGINGFACE_HUB_CACHE", default))
    return expanded(os.path.expandvars(found))

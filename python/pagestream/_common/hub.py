"""Repositories in the local Hugging Face cache. Nothing is downloaded.

The cache has a folder for each model (https://huggingface.co/docs/huggingface_hub/guides/manage-cache):

```text
models--openai-community--gpt2/
    refs/main                the name of a snapshot
    snapshots/607a30d7.../   its files
```
"""

from __future__ import annotations

import errno
import os

from pagestream._common.paths import expanded


def cache_folder() -> str:
    """Returns the cache folder, according to huggingface_hub's variables."""
    environment = os.environ.get
    home = os.path.join(environment("XDG_CACHE_HOME") or "~/.cache", "huggingface")
    default = os.path.join(environment("HF_HOME") or home, "hub")
    # The second name is an old one.
    found = environment("HF_HUB_CACHE") or environment("HUGGINGFACE_HUB_CACHE") or default
    return expanded(os.path.expandvars(found))


def repository_folder(name: str) -> str:
    """Returns the folder of a model, for example ``"openai-community/gpt2"``. It may not exist."""
    return os.path.join(cache_folder(), f"models--{name.replace('/', '--')}")


def snapshot_in(folder: str) -> str | None:
    """Returns the snapshot of the branch ``main``, or the only snapshot. None if there are no snapshots.

    Args:
        folder: A result of `repository_folder`.

    Raises:
        FileNotFoundError: There are several snapshots, but none for ``main``.
    """
    snapshots = os.path.join(folder, "snapshots")
    if not os.path.isdir(snapshots):
        return None
    try:
        with open(os.path.join(folder, "refs", "main"), encoding="ascii") as file:
            return os.path.join(snapshots, file.read().strip())
    except FileNotFoundError:
        pass
    found = sorted(os.listdir(snapshots))
    if len(found) == 1:
        return os.path.join(snapshots, found[0])
    message = f"no snapshot of main among {', '.join(found) or 'none'}; name the folder of a snapshot"
    raise FileNotFoundError(errno.ENOENT, message, snapshots)

"""Checkpoints by the id of a Hugging Face repository."""

from __future__ import annotations

import errno
import os
import re

from pagestream._common import hub

# For example "gpt2" or "meta-llama/Llama-3.1-8B". Names of files do not match.
_REPOSITORY = re.compile(
    r"(?!.*(--|\.\.|\.(safetensors|json|bin|pt|npy|idx|ds|tokens)$))(\w[\w.-]*/)?\w[\w.-]*", re.ASCII
)


def may_be_repository(name: str) -> bool:
    """Returns whether a name has the form of a repository's id, and is not a path."""
    return _REPOSITORY.fullmatch(name) is not None and not os.path.lexists(name)


def instead_of_file(name: str) -> str:
    """Returns what to do with the id of a repository where a file is expected."""
    return (
        f"or download a Hugging Face repository with `hf download {name}`, and open it with "
        f'open_checkpoint("{name}")'
    )


def local_folder(name: str) -> str:
    """Returns the snapshot of a repository in the local cache. Nothing is downloaded.

    Args:
        name: A path, or the id of a repository, for example ``"meta-llama/Llama-3.1-8B"``.

    Returns:
        The path itself, if it exists or cannot be an id. Otherwise the snapshot; see `hub.snapshot_in`.

    Raises:
        FileNotFoundError: There is no such path, and no snapshot with safetensors files.
    """
    if not may_be_repository(name):
        return name
    remedy = f"download a Hugging Face repository with `hf download {name}`"
    snapshot = hub.snapshot_in(hub.repository_folder(name))
    if snapshot is None or not os.path.isdir(snapshot):
        message = f"no such file or folder, and no snapshot of this name in {hub.cache_folder()}; {remedy}"
        raise FileNotFoundError(errno.ENOENT, message, name)
    names = os.listdir(snapshot)
    if not any(each.endswith((".safetensors", ".safetensors.index.json")) for each in names):
        message = f"no such file or folder, and {snapshot} has no safetensors files; {remedy}"
        raise FileNotFoundError(errno.ENOENT, message, name)
    return snapshot

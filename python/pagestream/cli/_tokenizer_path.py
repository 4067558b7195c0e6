"""Finds a model's ``tokenizer.json`` in its folder or in the Hugging Face cache, without network access."""

from __future__ import annotations

import errno
import os
import re

from pagestream._common import hub

_FILE = "tokenizer.json"
_HUB_NAME = re.compile(r"[\w.-]+(/[\w.-]+)?", re.ASCII)


def tokenizer_path(name: str) -> str:
    """Returns the path of a tokenizer.

    Args:
        name: A ``tokenizer.json``, a folder that contains one, or the name of a model in the Hugging Face
            cache, for example ``openai-community/gpt2``. A path takes precedence over a name.

    Raises:
        FileNotFoundError: There is no such tokenizer.
    """
    if os.path.isfile(name):
        return name
    if os.path.isdir(name):
        return _in_folder(name)
    if _HUB_NAME.fullmatch(name) and os.path.isdir(folder := hub.repository_folder(name)):
        return _in_folder(folder)
    message = (
        f"no such tokenizer; expected a {_FILE}, a folder with one, or a model in {hub.cache_folder()}, such "
        "as openai-community/gpt2, which `hf download` puts there"
    )
    raise FileNotFoundError(errno.ENOENT, message, name)


def _in_folder(folder: str) -> str:
    """Returns the tokenizer in a model's folder, or in a cache folder with its snapshots."""
    holder = hub.snapshot_in(folder) or folder
    path = os.path.join(holder, _FILE)
    if not os.path.isfile(path):
        message = (
            f"no such tokenizer; the folder has no {_FILE}; transformers writes one: "
            "AutoTokenizer.from_pretrained(...).save_pretrained(...)"
        )
        raise FileNotFoundError(errno.ENOENT, message, holder)
    return path

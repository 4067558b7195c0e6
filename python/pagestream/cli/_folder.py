"""Folders with several kinds of content: several splits, or token files beside weights."""

from __future__ import annotations

import os

from pagestream._common.amounts import count
from pagestream.cli._target import located, weights_in
from pagestream.errors import PagestreamError
from pagestream.tokens.corpus import open_tokens
from pagestream.tokens.paths import token_paths
from pagestream.tokens.splits import mixture_at


def folder_warnings(path: str, *, of_weights: bool) -> list[str]:
    """Returns warnings for a folder that a command reads only in part, and for a mixture of splits.

    Args:
        path: As for `opened`.
        of_weights: Whether the command reads the safetensors files at the path rather than the token files.
    """
    path = located(path)
    if of_weights:
        return _beside_weights(path) if os.path.isdir(path) else []
    found = []
    if mixture := mixture_at(path, token_paths(path)):
        splits, remedy = mixture
        does = "refuses it" if os.path.isdir(path) else "warns of it"
        found.append(f"{splits}. This command reads all of them, but open_tokens {does}: {remedy}")
    if os.path.isdir(path) and (weights := weights_in(path)):
        found.append(
            f"this folder also has {_listed(weights, 'safetensors file')}. This command reads the token "
            "files alone: leave --format out for the weights"
        )
    return found


def _beside_weights(folder: str) -> list[str]:
    try:
        named = [os.fsdecode(file) for file in token_paths(folder)]
    except FileNotFoundError:
        return []
    # PyTorch's pytorch_model.bin also has the suffix of a token file.
    if not (files := [os.path.basename(file) for file in named if _has_tokens(file)]):
        return []
    warning = (
        f"this folder also has {_listed(files, 'token file')}. This command reads the weights alone: name "
        f"the token files, for example {os.path.join(folder, files[0])}"
    )
    return [warning]


def _has_tokens(path: str) -> bool:
    try:
        open_tokens([path]).close()
    except (OSError, PagestreamError):
        return False
    return True


def _listed(names: list[str], what: str) -> str:
    return f"{count(len(names), what)}, {names[0]}{', …' if len(names) > 1 else ''}"

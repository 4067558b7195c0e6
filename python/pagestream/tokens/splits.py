"""Folders and patterns with files of several splits, for example of training and validation."""

from __future__ import annotations

import os
import re
import warnings
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pagestream._common.types import StrPath

# Words in the names of files, and the split for each.
_SPLITS = {
    "train": "training",
    "training": "training",
    "val": "validation",
    "valid": "validation",
    "validation": "validation",
    "dev": "validation",
    "eval": "validation",
    "evaluation": "validation",
    "heldout": "validation",
    "holdout": "validation",
    "test": "test",
}
_SEVERAL = 2
_WORD = re.compile(rf"(?<![a-z])({'|'.join(_SPLITS)})(?![a-z])", re.IGNORECASE)


def check_splits(path: StrPath | Sequence[StrPath], files: Sequence[StrPath]) -> None:
    """Refuses a folder with files of several splits, and warns of such a pattern. A list may mix them.

    Args:
        path: The argument that names the files.
        files: The files.

    Raises:
        ValueError: The path is a folder with files of two or more of training, validation and test.
    """
    if not isinstance(path, (str, bytes, os.PathLike)):
        return
    found = _mixed([os.fsdecode(file) for file in files])
    if not found:
        return
    told = ", ".join(f"{split} ({count})" for split, (_, count) in found.items())
    plain = os.fsdecode(path)
    if os.path.isdir(plain):
        patterns = " or ".join(repr(os.path.join(plain, f"*{word}*")) for word, _ in found.values())
        message = (
            f"{plain}: this folder has files of several splits, {told}, and one corpus would mix them; "
            f"pass one split, {patterns}, or a list of files"
        )
        raise ValueError(message)
    message = (
        f"{plain}: this pattern matches files of several splits, {told}, and one corpus mixes them; "
        "use a pattern for one split, or pass a list of files to use them all"
    )
    warnings.warn(message, UserWarning, stacklevel=3)


def _mixed(paths: list[str]) -> dict[str, tuple[str, int]]:
    """Returns a word and the number of files for each split, if there are several splits."""
    # Most names have words of one split at most. This shows it for 1,000 files in a tenth of the time.
    names = "\n".join(paths).lower()
    if len({split for word, split in _SPLITS.items() if word in names}) < _SEVERAL:
        return {}
    # Folders that lead to all files say nothing about one of them.
    common = os.path.commonpath([os.path.dirname(path) for path in paths])
    found: dict[str, tuple[str, int]] = {}
    for path in paths:
        words = {_SPLITS[word.lower()]: word for word in _WORD.findall(path[len(common) :])}
        # A name with words of several splits, for example "train_test_split.bin", belongs to none.
        if len(words) == 1:
            ((split, word),) = words.items()
            first, count = found.get(split, (word, 0))
            found[split] = first, count + 1
    if len(found) < _SEVERAL:
        return {}
    return {split: found[split] for split in _SPLITS.values() if split in found}

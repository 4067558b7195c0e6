"""Folders and patterns with files of several splits, for example of training and validation."""

from __future__ import annotations

import os
import re
import string
import warnings
from typing import TYPE_CHECKING

from pagestream._common.paths import expanded

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
_HELD_OUT = [word for word, split in _SPLITS.items() if split != "training"]
_WORD = re.compile(rf"(?<![a-z])({'|'.join(_SPLITS)})(?![a-z])", re.IGNORECASE)


def check_splits(path: StrPath | Sequence[StrPath], files: Sequence[StrPath]) -> None:
    """Rejects a folder with files of several splits, and warns about such a pattern. A list may mix them.

    Args:
        path: The argument that names the files.
        files: The files.

    Raises:
        ValueError: The path is a folder with files of two or more of training, validation and test; or with
            files of validation or test and files whose names show no split.
    """
    if not isinstance(path, (str, bytes, os.PathLike)) or (mixture := mixture_at(path, files)) is None:
        return
    plain, (found, remedy) = expanded(path), mixture
    if os.path.isdir(plain):
        message = f"{plain}: {found}, and one corpus would mix them; {remedy}, or a list of files"
        raise ValueError(message)
    message = (
        f"{plain}: {found}, and one corpus mixes them; {remedy}, or pass a list of files to use them all"
    )
    warnings.warn(message, UserWarning, stacklevel=4)


def mixture_at(path: StrPath, files: Sequence[StrPath]) -> tuple[str, str] | None:
    """Returns the splits that a folder or a pattern mixes, and a remedy; None if there is at most one split.

    Args:
        path: The folder or the pattern.
        files: Its files.
    """
    words, told = _mixed([os.fsdecode(file) for file in files])
    if not words:
        return None
    plain = expanded(path)
    if os.path.isdir(plain):
        patterns = " or ".join(repr(os.path.join(plain, f"*{word}*")) for word in words)
        return f"this folder has files of several splits, {told}", f"pass one split, {patterns}"
    return f"this pattern matches files of several splits, {told}", "use a pattern for one split"


def _mixed(paths: list[str]) -> tuple[list[str], str]:
    """Returns a word for each split, and the splits with their numbers of files. Empty without a mixture."""
    # Words at the beginning of all paths, including folders, say nothing about a single file.
    begin = len(os.path.commonprefix(paths).rstrip(string.ascii_letters))  # noqa: RUF071 - within names, too
    names = [path[begin:] for path in paths]
    # Most names contain no word for a held-out split. This check finds that out in a tenth of the time.
    joined = "\n".join(names).lower()
    if not any(word in joined for word in _HELD_OUT):
        return [], ""
    found = [{word.lower(): word for word in _WORD.findall(name)} for name in names]
    # A word in every name also says nothing, for example "test" in test_train.bin and test_val.bin.
    shared = set(found[0]).intersection(*found)
    words: dict[str, str] = {}
    counts = dict.fromkeys(_SPLITS.values(), 0)
    for file in found:
        own = {_SPLITS[word]: file[word] for word in file if word not in shared}
        # A name with words of several splits, for example "train_test_split.bin", belongs to none of them.
        if len(own) == 1:
            ((split, word),) = own.items()
            words.setdefault(split, word)
            counts[split] += 1
    told = [f"{split} ({number})" for split, number in counts.items() if number]
    # Next to held-out files, files whose names show no split are probably for training.
    if others := len(paths) - sum(counts.values()):
        told.append(f"others ({others})")
    if not words.keys() - {"training"} or len(told) == 1:
        return [], ""
    return [words[split] for split in counts if split in words], ", ".join(told)

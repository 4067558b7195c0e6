"""Names of tensors that are close to a wrong name, for its `KeyError`."""

from __future__ import annotations

import re
from itertools import islice
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable

    from pagestream import _native

# Limits on the time of the search: names that are read, and names that are compared.
_SEARCHED = 2_000
_COMPARED = 100
_SHOWN = 3
_NUMBER = re.compile(r"\d+")


def add_closest(error: KeyError, name: object, files: _native.Checkpoint) -> None:
    """Adds a note with the closest names to an error, if there are any."""
    if isinstance(name, str) and (found := closest(name, islice(files.keys(), _SEARCHED))):
        error.add_note(f"the closest names are {', '.join(map(repr, found))}")


def closest(name: str, names: Iterable[str]) -> list[str]:
    """Returns the closest names, the best one first.

    Names that differ only in their numbers are compared once, because a checkpoint has thousands of them. One
    with the numbers of the wrong name stands for the others, or else their first.
    """
    from difflib import get_close_matches

    numbers = _NUMBER.findall(name)
    # The first name of each series, and the name with these numbers.
    first: dict[str, str] = {}
    same: dict[str, str] = {}
    for each in names:
        series = _NUMBER.sub("0", each)
        first.setdefault(series, each)
        if numbers and _NUMBER.findall(each) == numbers:
            same.setdefault(series, each)
    found = get_close_matches(_NUMBER.sub("0", name), list(islice(first, _COMPARED)), _SHOWN)
    return [same.get(series) or first[series] for series in found]

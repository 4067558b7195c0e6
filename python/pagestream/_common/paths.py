"""Paths as users write them: `expanded` is the one place that understands ``~``."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pagestream._common.types import StrPath


def expanded(path: StrPath) -> str:
    """Returns a path as a str, with a home directory in place of ``~`` or ``~user``.

    An entry ``~`` of the current directory wins, so that every path that the system can open means the same
    file as elsewhere.
    """
    plain = os.fsdecode(path)
    if not plain.startswith("~") or os.path.lexists(plain.partition(os.sep)[0]):
        return plain
    return os.path.expanduser(plain)

"""Defaults of `strict`, `ahead` and `copy` in calls: the arguments of the last `install`."""

from __future__ import annotations

from typing import Protocol

from pagestream._common import environment
from pagestream._common.checks import check_bool


class HasDefaults(Protocol):
    """The result of `install`."""

    strict: bool
    ahead: int | None
    copy: bool | None


# The result of each `install` in effect, in order.
installed: list[HasDefaults] = []


def strictness(strict: bool | None) -> bool:  # noqa: FBT001
    """Returns the argument ``strict``; for None that of the last `install`, or True."""
    if strict is None:
        return installed[-1].strict if installed else True
    return check_bool("strict", strict)


def ahead_bytes(ahead: int | None) -> int | None:
    """Returns the longest read-ahead in bytes, None for one that follows the free memory.

    That is the argument ``ahead``, or else that of the last `install`, or else ``PAGESTREAM_AHEAD``.
    """
    if ahead is None and installed:
        ahead = installed[-1].ahead
    return environment.ahead_bytes(ahead)


def copies(copy: bool | None, *, upstream_copies: bool = False) -> bool:  # noqa: FBT001
    """Returns whether tensors are copied.

    That is the argument ``copy``, or else that of the last `install`, or else ``PAGESTREAM_COPY``. If none of
    them is given, a call copies where upstream's does and code that expects upstream may be calling.
    """
    if copy is None and installed:
        copy = installed[-1].copy
    return environment.copies(copy, default=upstream_copies and bool(installed))

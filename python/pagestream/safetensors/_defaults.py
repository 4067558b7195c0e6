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
    """Resolves ``strict``: the call's argument, otherwise the last `install`'s, otherwise True."""
    if strict is None:
        return installed[-1].strict if installed else True
    return check_bool("strict", strict)


def ahead_bytes(ahead: int | None) -> int | None:
    """Resolves ``ahead``: the call's argument, the last `install`'s, or ``PAGESTREAM_AHEAD``.

    Returns:
        The maximum read-ahead in bytes. None adapts it to the free memory.
    """
    if ahead is None and installed:
        ahead = installed[-1].ahead
    return environment.ahead_bytes(ahead)


def copies(copy: bool | None, *, upstream_copies: bool = False) -> bool:  # noqa: FBT001
    """Resolves ``copy``: the call's argument, otherwise the last `install`'s, otherwise ``PAGESTREAM_COPY``.

    If none of them is set, tensors are views, with one exception: after `install`, a call that copies in
    upstream (`upstream_copies`) also copies here, for programs that rely on it.
    """
    if copy is None and installed:
        copy = installed[-1].copy
    return environment.copies(copy, default=upstream_copies and bool(installed))

"""Default strictness of header checks."""

from __future__ import annotations

from typing import Any

from pagestream._common.checks import check_bool

# The results of each `install` in effect, in order.
installed: list[Any] = []


def chosen(strict: bool | None) -> bool:  # noqa: FBT001
    """Returns the argument ``strict``; for None the strictness of the last `install`, or True."""
    if strict is None:
        return bool(installed[-1].strict) if installed else True
    return check_bool("strict", strict)

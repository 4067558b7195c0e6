"""Default strictness of header checks."""

from __future__ import annotations

from pagestream._common.checks import check_bool

# The strictness of each `install` in effect, in order, with the object that `install` returned.
installed: list[tuple[object, bool]] = []


def chosen(strict: bool | None) -> bool:  # noqa: FBT001
    """Returns the argument ``strict``; for None the strictness of the last `install`, or True."""
    if strict is None:
        return installed[-1][1] if installed else True
    return check_bool("strict", strict)

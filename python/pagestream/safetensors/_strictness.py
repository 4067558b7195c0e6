"""How strictly headers are taken where a call does not say."""

from __future__ import annotations

from pagestream._common.checks import check_bool

# What each `install` in effect said, the last one last, with the object that stands for it.
installed: list[tuple[object, bool]] = []


def chosen(strict: bool | None) -> bool:  # noqa: FBT001
    """Returns the argument ``strict``; for None what the last `install` said, or True."""
    if strict is None:
        return installed[-1][1] if installed else True
    return check_bool("strict", strict)

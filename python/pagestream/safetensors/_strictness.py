"""How strictly headers are taken where a call does not say."""

from __future__ import annotations

from pagestream._arguments import yes_or_no

# What each `install` that is in effect said.
installed: list[bool] = []


def chosen(strict: bool | None) -> bool:  # noqa: FBT001
    """The argument ``strict``; None is what the last `install` said, or True."""
    if strict is None:
        return installed[-1] if installed else True
    return yes_or_no("strict", strict)

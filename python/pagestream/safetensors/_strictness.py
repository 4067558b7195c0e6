"""How strictly headers are taken where a call does not say."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pagestream._common.checks import check_bool

if TYPE_CHECKING:
    from pagestream.safetensors._install import Installed

# What is in effect, the last one last.
installed: list[Installed] = []


def chosen(strict: bool | None) -> bool:  # noqa: FBT001
    """The argument ``strict``; None is what the last `install` said, or True."""
    if strict is None:
        return installed[-1].strict if installed else True
    return check_bool("strict", strict)

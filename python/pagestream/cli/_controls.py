"""Texts without characters that a terminal obeys."""

from __future__ import annotations

import re

# A terminal obeys these: a tensor could have a name that moves the cursor, or sets the title of the window.
_CONTROLS = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]")


def harmless(text: str) -> str:
    """Returns a text with control characters as Python writes them, except tabs and ends of lines."""
    return _CONTROLS.sub(lambda found: f"\\x{ord(found[0]):02x}", text)

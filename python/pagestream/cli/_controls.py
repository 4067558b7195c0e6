"""Texts without terminal control characters."""

from __future__ import annotations

import re

# A terminal interprets these: for example, a tensor's name could move the cursor, or set the window's title.
_CONTROLS = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]")


def harmless(text: str) -> str:
    """Returns a text with control characters escaped as in Python, except tabs and line ends."""
    return _CONTROLS.sub(lambda found: f"\\x{ord(found[0]):02x}", text)

"""Amounts in the form that people write."""

from __future__ import annotations

_STEP, _THREE_DIGITS = 1024, 100


def count(number: int, what: str) -> str:
    """Returns a number of things: ``"1 file"``, ``"2,048 files"``."""
    return f"{number:,} {what}{'' if number == 1 else 's'}"


def size(count_bytes: float) -> str:
    """Returns a number of bytes: ``"17 bytes"``, ``"1.5 GiB"``."""
    amount, unit = float(count_bytes), "bytes"
    for larger in ("KiB", "MiB", "GiB", "TiB"):
        if amount < _STEP:
            break
        amount, unit = amount / _STEP, larger
    return f"{amount:.0f} {unit}" if unit == "bytes" or amount >= _THREE_DIGITS else f"{amount:.3g} {unit}"

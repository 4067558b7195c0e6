"""Settings from the environment. An explicit argument always wins.

A value that cannot be parsed is a `ValueError` that names the variable.
"""

from __future__ import annotations

import operator
import os
from typing import Literal, get_args

from pagestream import _native

Mode = Literal["auto", "shared", "private", "read"]


def mmap_mode(explicit: Mode | None) -> str:
    """The mode to open with: the argument, else ``PAGESTREAM_MMAP_MODE``, else ``"auto"``."""
    if explicit is not None:
        return explicit
    value = os.environ.get("PAGESTREAM_MMAP_MODE", "auto")
    if value not in get_args(Mode):
        words = ", ".join(get_args(Mode))
        message = f"PAGESTREAM_MMAP_MODE is {value!r}; it must be one of {words}"
        raise ValueError(message)
    return value


def apply_fault_guard() -> None:
    """Heeds ``PAGESTREAM_FAULT_GUARD``: ``on`` (default), or ``off`` to install no SIGBUS handler."""
    value = os.environ.get("PAGESTREAM_FAULT_GUARD", "on")
    if value not in ("on", "off"):
        message = f"PAGESTREAM_FAULT_GUARD is {value!r}; it must be on or off"
        raise ValueError(message)
    _native.set_fault_guard(value == "on")


def number(name: str, default: int, *, least: int) -> int:
    """An integer from the environment."""
    text = os.environ.get(name)
    if text is None:
        return default
    try:
        value = int(text)
    except ValueError:
        value = least - 1
    if not least <= value < 1 << 63:
        message = f"{name} is {text!r}; it must be an integer, at least {least}"
        raise ValueError(message)
    return value


def threads(explicit: int | None) -> int | None:
    """Gathering threads: the argument, else ``PAGESTREAM_THREADS``, else None."""
    return _positive("threads", explicit, "PAGESTREAM_THREADS")


def memory_bytes(explicit: int | None) -> int | None:
    """A memory budget: the argument, else ``PAGESTREAM_MEMORY_BYTES``, else None."""
    return _positive("memory_bytes", explicit, "PAGESTREAM_MEMORY_BYTES")


def _positive(name: str, explicit: int | None, variable: str) -> int | None:
    if explicit is None:
        return number(variable, 0, least=1) or None
    try:
        value = operator.index(explicit)
    except TypeError:
        message = f"{name} must be an integer, not {explicit!r}"
        raise TypeError(message) from None
    if not 1 <= value < 1 << 63:
        limit = "at least 1" if value < 1 else "below 2^63"
        message = f"{name} must be {limit}, not {value}"
        raise ValueError(message)
    return value

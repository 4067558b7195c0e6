"""Settings from the environment. An explicit argument always wins.

A value that cannot be parsed is a `ValueError` that names the variable.
"""

from __future__ import annotations

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

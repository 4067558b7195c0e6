"""Settings from the environment. An explicit argument always wins.

A value that cannot be parsed is a `ValueError` that names the variable.
"""

from __future__ import annotations

import logging
import os
import sys
from typing import TYPE_CHECKING, cast

from pagestream import _native
from pagestream._common.checks import at_least, check_bool, one_of

if TYPE_CHECKING:
    from pagestream._common.types import Mode

_log = logging.getLogger("pagestream.files")
_LOG_LEVELS = ("debug", "info", "warning", "error")
_COMMAND = "pagestream"
_WRONG_USE = 2


def mmap_mode(explicit: Mode | None, argument: str = "mmap_mode") -> Mode:
    """Returns the mode for opening files: the argument, ``PAGESTREAM_MMAP_MODE``, or ``"auto"``."""
    value = os.environ.get("PAGESTREAM_MMAP_MODE", "auto") if explicit is None else explicit
    one_of("PAGESTREAM_MMAP_MODE" if explicit is None else argument, value, _native.MODES)
    return cast("Mode", value)


def apply_log() -> None:
    """Applies ``PAGESTREAM_LOG``. Without it, the library is silent, unless the program sets up logging.

    With it, messages of that level and above go to standard error.
    """
    logger = logging.getLogger("pagestream")
    value = os.environ.get("PAGESTREAM_LOG")
    if value is None:
        logger.addHandler(logging.NullHandler())
        return
    one_of("PAGESTREAM_LOG", value, _LOG_LEVELS)
    handler = logging.StreamHandler()
    handler.setFormatter(logging.Formatter("%(name)s: %(levelname)s: %(message)s"))
    logger.addHandler(handler)
    logger.setLevel(value.upper())


def apply() -> None:
    """Applies the variables that take effect once, when the package is imported.

    ``PAGESTREAM_FAULT_GUARD`` is ``on`` (default), ``copies`` or ``off``. ``PAGESTREAM_SHARE`` is ``off``
    (default) or ``on``: open files are shared with processes of the same user.
    """
    try:
        _apply()
    except ValueError as error:
        if not _is_command():
            raise
        # The command cannot catch this error: Python imports the package before the command runs.
        print(f"{_COMMAND}: {error}", file=sys.stderr)  # noqa: T201
        raise SystemExit(_WRONG_USE) from None


def _apply() -> None:
    guard = os.environ.get("PAGESTREAM_FAULT_GUARD", "on")
    one_of("PAGESTREAM_FAULT_GUARD", guard, _native.FAULT_GUARDS)
    _native.set_fault_guard(guard)
    share = os.environ.get("PAGESTREAM_SHARE", "off")
    one_of("PAGESTREAM_SHARE", share, ("on", "off"))
    _native.set_share(share == "on")
    apply_log()


def _is_command() -> bool:
    """Returns whether Python imports the package for its script, or for ``python -m pagestream``."""
    program = os.path.basename(sys.argv[0]) if sys.argv else ""
    # Until Python has found the module for `-m`, only `orig_argv` contains its name.
    return program == _COMMAND or (program == "-m" and _COMMAND in sys.orig_argv)


def check() -> None:
    """Rejects an invalid value of a variable that is read on use, for example ``PAGESTREAM_THREADS``.

    The command calls this before it starts, because it may not use the variable for hours.

    Raises:
        ValueError: A value cannot be parsed.
    """
    mmap_mode(None)
    threads(None)
    memory_bytes(None)
    ahead_bytes(None)
    copies(None)
    sglang()


def log_opening(what: str, mode: str, reason: str | None) -> None:
    """Logs the mode in which a file was opened, and why it is not the first choice."""
    if reason is None:
        _log.debug("opened %s: %s", what, mode)
    else:
        _log.info("opened %s: %s, because %s", what, mode, reason)


def number(name: str, default: int, *, least: int, most: int = (1 << 63) - 1) -> int:
    """Returns an integer from the environment."""
    text = os.environ.get(name)
    if text is None:
        return default
    try:
        value = int(text)
    except ValueError:  # also if it has thousands of digits
        value = least - 1
    if not least <= value <= most:
        limit = f"at most {most}" if value > most else f"an integer, at least {least}"
        message = f"{name} is {text!r}; it must be {limit}"
        raise ValueError(message)
    return value


def threads(explicit: int | None) -> int | None:
    """Returns the number of threads: the argument, ``PAGESTREAM_THREADS``, or None."""
    if explicit is not None:
        count = at_least(1, "threads", explicit)
        if count > _native.MAX_THREADS:
            message = f"threads must be 1 to {_native.MAX_THREADS}, not {count}"
            raise ValueError(message)
        return count
    return number("PAGESTREAM_THREADS", 0, least=1, most=_native.MAX_THREADS) or None


def memory_bytes(explicit: int | None) -> int | None:
    """Returns the memory budget: the argument, ``PAGESTREAM_MEMORY_BYTES``, or None."""
    if explicit is not None:
        return at_least(1, "memory_bytes", explicit)
    return number("PAGESTREAM_MEMORY_BYTES", 0, least=1) or None


def ahead_bytes(explicit: int | None) -> int | None:
    """Returns the maximum read-ahead in bytes: the argument, ``PAGESTREAM_AHEAD``, or None; 0 disables it."""
    if explicit is not None:
        if isinstance(explicit, bool) or not hasattr(explicit, "__index__"):
            if explicit is False:
                return 0
            message = f"ahead must be False or a number of bytes, not {explicit!r}"
            raise TypeError(message)
        return at_least(1, "ahead", explicit)
    text = os.environ.get("PAGESTREAM_AHEAD", "auto")
    if text in ("auto", "off"):
        return 0 if text == "off" else None
    # Python refuses to parse numbers with thousands of digits.
    is_number = text.isascii() and text.isdigit() and len(text) <= len(str(1 << 63))
    if not is_number or not 0 < int(text) < 1 << 63:
        message = f'PAGESTREAM_AHEAD is {text!r}; it must be "auto", "off" or a number of bytes, at least 1'
        raise ValueError(message)
    return int(text)


def copies(explicit: bool | None, *, default: bool = False) -> bool:  # noqa: FBT001
    """Returns whether tensors are copied: the argument ``copy``, ``PAGESTREAM_COPY``, or `default`."""
    if explicit is not None:
        return check_bool("copy", explicit)
    value = os.environ.get("PAGESTREAM_COPY") or ("on" if default else "off")
    one_of("PAGESTREAM_COPY", value, ("on", "off"))
    return value == "on"


def sglang() -> bool:
    """Returns whether SGLang reads with pagestream: ``PAGESTREAM_SGLANG``, or False."""
    value = os.environ.get("PAGESTREAM_SGLANG", "off")
    one_of("PAGESTREAM_SGLANG", value, ("on", "off"))
    return value == "on"

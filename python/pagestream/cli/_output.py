"""Output of the commands, and the exit codes for errors."""

from __future__ import annotations

import dataclasses
import math
import os
import re
import sys
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import typer

from pagestream.cli import _codes
from pagestream.cli._controls import harmless
from pagestream.errors import FileChangedError, FormatError, MappedReadError

if TYPE_CHECKING:
    from collections.abc import Iterator

# Errors of a bad file: malformed, changed or unreadable. Other OSErrors, for example ENOENT, concern the
# path. A `SafetensorError` is a `FormatError`. Naming it would import safetensors.
BAD_FILE = (FormatError, MappedReadError, FileChangedError)

# The library's hints in the words of the command line.
_FLAGS = (
    (re.compile(r"\bopen_tokens reads it with\b"), "info and verify read it with"),
    (re.compile(r"\bopen_(tokens|checkpoint) also takes a list of files\b"), "or name a file"),
    (re.compile(r"\bpass the dtype\b"), "pass the --dtype"),
    (re.compile(r"\bopen it with open_tokens\(path, ([^,)]*)\)"), r"pass \1"),
    (re.compile(r"\bopen it with open_tokens\(path, ([^,)]*), ([^,)]*)\)"), r"pass \1 \2"),
    (re.compile(r'\b(format|dtype)=(["\']?)(\w+)\2'), r"--\1 \3"),
)


def print_json(facts: Any) -> None:  # noqa: ANN401 - any JSON value
    """Prints facts as JSON. Dataclasses become objects."""
    import json  # late: `--help` prints no JSON

    # `json` escapes all other control characters.
    print(re.sub(r"[\x7f-\x9f]", _as_json, json.dumps(facts, indent=2, default=_plain, ensure_ascii=False)))


def _as_json(control: re.Match[str]) -> str:
    return f"\\u{ord(control[0]):04x}"


def _plain(value: object) -> object:
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {field.name: getattr(value, field.name) for field in dataclasses.fields(value)}
    return str(value)


@contextmanager
def ending(*, as_json: bool) -> Iterator[None]:
    """Turns an error into an exit code and a message on standard error, and with `as_json` also into JSON."""
    try:
        yield
        if sys.stdout:
            sys.stdout.flush()
    except BrokenPipeError:
        # Python flushes its buffer at exit: redirect it to /dev/null, away from the closed pipe.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        raise typer.Exit(_codes.NO_READER) from None
    except (OSError, ValueError, ImportError) as error:
        if as_json:
            path = getattr(error, "filename", None)
            print_json({"error": {"type": type(error).__name__, "message": told(error), "path": path}})
        fail(told(error), _codes.BAD if isinstance(error, BAD_FILE) else _codes.WRONG_USE)


def told(error: BaseException) -> str:
    """Returns an error's message. A system error reads like ``tokens.bin: Permission denied``.

    Arguments of functions become flags: ``--format raw``.
    """
    message = str(error)
    if isinstance(error, OSError) and error.filename and error.strerror and error.filename2 is None:
        message = f"{os.fsdecode(error.filename)}: {error.strerror}"
    for pattern, flag in _FLAGS:
        message = pattern.sub(flag, message)
    return message


def fail(message: str, code: int) -> None:
    """Prints an error message, and ends the program with an exit code."""
    print(f"pagestream: {harmless(message)}", file=sys.stderr)
    raise typer.Exit(code)


def end_if_any(problems: list[str]) -> None:
    """Prints the problems of incomplete checkpoints on standard error, and exits with code 1."""
    for problem in problems:
        print(f"pagestream: {harmless(problem)}", file=sys.stderr)
    if problems:
        raise typer.Exit(_codes.BAD)


def matplotlib_figure() -> Any:  # noqa: ANN401 - matplotlib may not be installed
    """Returns matplotlib's `Figure` class.

    Raises:
        ImportError: matplotlib is not installed.
    """
    try:
        from matplotlib.figure import Figure
    except ImportError as error:
        message = "--png draws with matplotlib: pip install 'pagestream[plot]'"
        raise ImportError(message) from error
    return Figure


def percent(share: float) -> str:
    """Returns a share in percent. 0 % and 100 % are exact: 0.999 prints as 99 %. NaN prints as unknown."""
    if math.isnan(share):
        return "unknown"
    return f"{share if share in (0, 1) else min(max(share, 0.01), 0.99):.0%}"


def short(path: str) -> str:
    """Returns a path relative to the current folder, if that is shorter."""
    try:
        near = os.path.relpath(path)
    except ValueError:
        return path
    return min(near, path, key=len)

"""Output and exit codes of the commands: 0 success, 1 bad file, 2 wrong usage or missing path."""

from __future__ import annotations

import dataclasses
import json
import math
import os
import re
import sys
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import typer
from rich.console import Console
from rich.table import Table

from pagestream.errors import FileChangedError, FormatError, MappedReadError, SafetensorError

if TYPE_CHECKING:
    from collections.abc import Iterator

    from rich.text import Text

BAD, WRONG_USE, INTERRUPTED = 1, 2, 130
# 128 + SIGPIPE, as a shell reports a program killed by that signal: https://man7.org/linux/man-pages/man7/signal.7.html
_NO_READER = 141
# Lines in a pipe are not wrapped, because programs parse them.
_PIPE_COLUMNS = 10_000
# Errors of a bad file: malformed, changed or unreadable. Other OSErrors, such as ENOENT, are about the path.
BAD_FILE = (FormatError, SafetensorError, MappedReadError, FileChangedError)
# A terminal obeys these: a tensor could have a name that moves the cursor, or sets the title of the window.
_CONTROLS = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]")


class _Console(Console):
    """A console that raises BrokenPipeError when its reader is gone, so that `ending` sets the exit code."""

    def on_broken_pipe(self) -> None:
        """Raises BrokenPipeError, where rich would exit with code 1."""
        raise BrokenPipeError

    def render_str(self, text: str, **options: Any) -> Text:  # noqa: ANN401 - those of rich
        """Renders a text without control characters."""
        return super().render_str(harmless(text), **options)


def harmless(text: str) -> str:
    """Returns a text with control characters as Python writes them, except tabs and ends of lines."""
    return _CONTROLS.sub(lambda found: f"\\x{ord(found[0]):02x}", text)


def console(*, to_errors: bool = False) -> Console:
    """Returns a console: in colour on a terminal, plain and without line breaks in a pipe."""
    stream = sys.stderr if to_errors else sys.stdout
    width = None if stream and stream.isatty() else _PIPE_COLUMNS
    # Print brackets in names and messages literally: rich would read them as markup.
    return _Console(stderr=to_errors, highlight=False, markup=False, emoji=False, width=width)


def table(*columns: str, right: tuple[str, ...] = ()) -> Table:
    """Returns an empty table. The columns in `right` are right-aligned."""
    made = Table(box=None, pad_edge=False, header_style="bold")
    for column in columns:
        made.add_column(column, justify="right" if column in right else "left", overflow="fold")
    return made


def print_json(facts: Any) -> None:  # noqa: ANN401 - any JSON value
    """Prints facts as JSON. Dataclasses become objects."""
    # JSON escapes the others itself.
    print(re.sub(r"[\x7f-\x9f]", _as_json, json.dumps(facts, indent=2, default=_plain, ensure_ascii=False)))


def _as_json(control: re.Match[str]) -> str:
    return f"\\u{ord(control[0]):04x}"


def _plain(value: object) -> object:
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {field.name: getattr(value, field.name) for field in dataclasses.fields(value)}
    return str(value)


@contextmanager
def ending(*, as_json: bool) -> Iterator[None]:
    """Turns an error into an exit code and a message on standard error; with `as_json` also into JSON."""
    try:
        yield
        if sys.stdout:
            sys.stdout.flush()
    except KeyboardInterrupt:
        raise typer.Exit(INTERRUPTED) from None
    except BrokenPipeError:
        # Python flushes its buffer at exit: to /dev/null, not to the closed pipe.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        raise typer.Exit(_NO_READER) from None
    except (OSError, ValueError, ImportError) as error:
        if as_json:
            path = getattr(error, "filename", None)
            print_json({"error": {"type": type(error).__name__, "message": told(error), "path": path}})
        fail(told(error), BAD if isinstance(error, BAD_FILE) else WRONG_USE)


def told(error: BaseException) -> str:
    """Returns an error's message. A system error reads like ``tokens.bin: Permission denied``."""
    if isinstance(error, OSError) and error.filename and error.strerror and error.filename2 is None:
        return f"{os.fsdecode(error.filename)}: {error.strerror}"
    return str(error)


def fail(message: str, code: int) -> None:
    """Prints an error message, and ends the program with an exit code."""
    print(f"pagestream: {harmless(message)}", file=sys.stderr)
    raise typer.Exit(code)


def end_if_any(problems: list[str]) -> None:
    """Prints the problems of incomplete checkpoints on standard error, and exits with code 1."""
    for problem in problems:
        print(f"pagestream: {harmless(problem)}", file=sys.stderr)
    if problems:
        raise typer.Exit(BAD)


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


def print_problem(console: Console, problem: str | None) -> None:
    """Prints a checkpoint's problem, if it has one."""
    if problem:
        console.print(f"problem: {problem}", style="red")


def print_warnings(console: Console, warnings: list[str]) -> None:
    """Prints the warnings about a checkpoint, one per line."""
    for warning in warnings:
        console.print(f"  warning: {warning}")


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

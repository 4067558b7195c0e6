"""What the commands print, and their exit codes: 0 good, 1 the file is bad, 2 wrong use or no such path."""

from __future__ import annotations

import dataclasses
import json
import math
import os
import sys
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import typer
from rich.console import Console
from rich.table import Table

from pagestream.errors import FileChangedError, FormatError, MappedReadError, SafetensorError

if TYPE_CHECKING:
    from collections.abc import Iterator

BAD, WRONG_USE, INTERRUPTED = 1, 2, 130
# As if SIGPIPE had ended the program: https://man7.org/linux/man-pages/man7/signal.7.html
_NO_READER = 141
# Programs that read a pipe want a line in one piece.
_PIPE_COLUMNS = 10_000
# What says that a file is not what it should be. All else that a system call refuses is about the path.
BAD_FILE = (FormatError, SafetensorError, MappedReadError, FileChangedError)


class _Console(Console):
    """A console that lets the caller say how it ends when nobody reads any more."""

    def on_broken_pipe(self) -> None:
        """Raises the error that rich takes for the end of the program."""
        raise BrokenPipeError


def console(*, to_errors: bool = False) -> Console:
    """Returns where to print: in colour on a terminal, plain and without line breaks in a pipe."""
    stream = sys.stderr if to_errors else sys.stdout
    width = None if stream and stream.isatty() else _PIPE_COLUMNS
    # Names and messages are text, whatever brackets they have.
    return _Console(stderr=to_errors, highlight=False, markup=False, width=width)


def table(*columns: str, right: tuple[str, ...] = ()) -> Table:
    """Returns an empty table. The columns in `right` are aligned to the right."""
    made = Table(box=None, pad_edge=False, header_style="bold")
    for column in columns:
        made.add_column(column, justify="right" if column in right else "left", overflow="fold")
    return made


def print_json(facts: Any) -> None:  # noqa: ANN401 - whatever JSON has
    """Prints facts for other programs. Dataclasses become objects."""
    print(json.dumps(facts, indent=2, default=_plain, ensure_ascii=False))


def _plain(value: object) -> object:
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {field.name: getattr(value, field.name) for field in dataclasses.fields(value)}
    return str(value)


@contextmanager
def ending(*, as_json: bool) -> Iterator[None]:
    """Ends the program with the code of what goes wrong, and says it on standard error, or also as JSON."""
    try:
        yield
        if sys.stdout:
            sys.stdout.flush()
    except KeyboardInterrupt:
        raise typer.Exit(INTERRUPTED) from None
    except BrokenPipeError:
        # What Python still holds goes nowhere.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        raise typer.Exit(_NO_READER) from None
    except (OSError, ValueError, ImportError) as error:
        if as_json:
            path = getattr(error, "filename", None)
            print_json({"error": {"type": type(error).__name__, "message": told(error), "path": path}})
        fail(told(error), BAD if isinstance(error, BAD_FILE) else WRONG_USE)


def told(error: BaseException) -> str:
    """Returns what is said of an error: of one of the system, its file and what is wrong with it."""
    if isinstance(error, OSError) and error.filename and error.strerror and error.filename2 is None:
        return f"{os.fsdecode(error.filename)}: {error.strerror}"
    return str(error)


def fail(message: str, code: int) -> None:
    """Prints what is wrong, and ends the program."""
    print(f"pagestream: {message}", file=sys.stderr)
    raise typer.Exit(code)


def matplotlib_figure() -> Any:  # noqa: ANN401 - matplotlib may not be installed
    """Returns the class of pictures.

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
    """Prints why a checkpoint is not whole, if it is not."""
    if problem:
        console.print(f"problem: {problem}", style="red")


def percent(share: float) -> str:
    """Returns a share in percent. 0 % and 100 % mean nothing and all; NaN is what is not known."""
    if math.isnan(share):
        return "unknown"
    return f"{share if share in (0, 1) else min(max(share, 0.01), 0.99):.0%}"


def short(path: str) -> str:
    """Returns a path as seen from the current folder, if that is shorter."""
    try:
        near = os.path.relpath(path)
    except ValueError:
        return path
    return min(near, path, key=len)

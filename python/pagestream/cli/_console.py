"""Consoles, and what commands print on them: in colour on a terminal, plain in a pipe."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

from rich.console import Console
from rich.table import Table

from pagestream.cli._controls import harmless

if TYPE_CHECKING:
    from rich.text import Text

# Lines in a pipe are not wrapped, because programs parse them.
_PIPE_COLUMNS = 10_000


class _Console(Console):
    """A console that raises BrokenPipeError when its reader is gone, so that `ending` sets the exit code."""

    def on_broken_pipe(self) -> None:
        """Raises BrokenPipeError, where rich would exit with code 1."""
        raise BrokenPipeError

    def render_str(self, text: str, **options: Any) -> Text:  # noqa: ANN401 - those of rich
        """Renders a text without control characters."""
        return super().render_str(harmless(text), **options)


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


def print_problem(console: Console, problem: str | None) -> None:
    """Prints a checkpoint's problem, if it has one."""
    if problem:
        console.print(f"problem: {problem}", style="red")


def print_warnings(console: Console, warnings: list[str]) -> None:
    """Prints the warnings about a checkpoint, one per line."""
    for warning in warnings:
        console.print(f"  warning: {warning}")

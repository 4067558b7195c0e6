"""Consoles, tables and text: in colour on a terminal, plain in a pipe."""

from __future__ import annotations

import sys
import textwrap
from typing import TYPE_CHECKING, Any

from rich.console import Console
from rich.table import Table

from pagestream.cli._controls import harmless

if TYPE_CHECKING:
    from rich.text import Text

# Names in a pipe are complete, because programs parse them. Prose has the width of a usual terminal.
_PIPE_COLUMNS, _PROSE_COLUMNS = 10_000, 80
# The colour of lines that need an action: bad files, problems, warnings and advice.
ACTION = "yellow"


class _Console(Console):
    """A console that raises BrokenPipeError when its reader is gone, so that `ending` sets the exit code."""

    def on_broken_pipe(self) -> None:
        """Raises BrokenPipeError. rich would exit with code 1."""
        raise BrokenPipeError

    def render_str(self, text: str, **options: Any) -> Text:  # noqa: ANN401 - those of rich
        """Renders a text without control characters."""
        return super().render_str(harmless(text), **options)

    def print(self, *objects: Any, **options: Any) -> None:  # noqa: ANN401 - those of rich
        """Prints objects. In a pipe, it omits the blanks with which rich fills the last column of a table."""
        if self.width != _PIPE_COLUMNS:
            super().print(*objects, **options)
            return
        with self.capture() as captured:
            super().print(*objects, **options)
        self.file.writelines(f"{line.rstrip()}\n" for line in captured.get().splitlines())


def console(*, to_errors: bool = False) -> _Console:
    """Returns a console: in colour on a terminal, plain and without broken names in a pipe."""
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


def print_text(
    console: Console, text: str, *, head: str = "", indent: int | None = None, style: str | None = None
) -> None:
    """Prints a text in lines of a terminal's width, or of at most 80 columns in a pipe.

    Args:
        console: The console.
        text: The text. It is broken only at spaces.
        head: The beginning of the first line, for example a path. It is never broken.
        indent: Blanks before all other lines; by default as many as the head has characters.
        style: A colour for a terminal.
    """
    blanks = " " * (len(head) if indent is None else indent)
    lines = textwrap.wrap(
        harmless(text),
        console.width if console.width != _PIPE_COLUMNS else _PROSE_COLUMNS,
        initial_indent=harmless(head),
        subsequent_indent=blanks,
        break_long_words=False,
        break_on_hyphens=False,
    )
    for line in lines:
        console.print(line, style=style, soft_wrap=True)


def print_problem(console: Console, problem: str | None) -> None:
    """Prints a checkpoint's problem, if it has one."""
    if problem:
        print_text(console, problem, head="problem: ", indent=2, style=ACTION)


def print_warnings(console: Console, warnings: list[str]) -> None:
    """Prints the warnings about a checkpoint, each on a new line."""
    for warning in warnings:
        print_text(console, warning, head="  warning: ", indent=4, style=ACTION)

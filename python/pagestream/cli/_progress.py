"""The progress bar for commands that process many bytes."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

from rich.progress import (
    BarColumn,
    DownloadColumn,
    Progress,
    ProgressColumn,
    TextColumn,
    TimeRemainingColumn,
)
from rich.text import Text

from pagestream._common.amounts import size
from pagestream.cli import _console

if TYPE_CHECKING:
    from rich.progress import Task


class _RateColumn(ProgressColumn):
    """Bytes per second, in binary units like all other sizes. rich's own column has only decimal units."""

    def render(self, task: Task) -> Text:
        """Returns the rate, or nothing until two updates have shown it."""
        rate = task.finished_speed or task.speed
        return Text(f"{size(rate)}/s" if rate else "", style="progress.data.speed")


def bar_of_bytes() -> Progress:
    """Returns a bar with bytes, rate and remaining time, on standard error if it is a terminal."""
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        DownloadColumn(binary_units=True),
        _RateColumn(),
        TimeRemainingColumn(),
    )
    # In a pipe only the result is useful.
    return Progress(
        *columns, console=_console.console(to_errors=True), transient=True, disable=not sys.stderr.isatty()
    )

"""The bar of commands that work through many bytes."""

from __future__ import annotations

import sys

from rich.progress import (
    BarColumn,
    DownloadColumn,
    Progress,
    TextColumn,
    TimeRemainingColumn,
    TransferSpeedColumn,
)

from pagestream.cli import _output


def bar_of_bytes() -> Progress:
    """Returns a bar with bytes, rate and remaining time, on standard error if that is a terminal."""
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        DownloadColumn(binary_units=True),
        TransferSpeedColumn(),
        TimeRemainingColumn(),
    )
    # In a pipe the result alone is of use.
    return Progress(
        *columns, console=_output.console(to_errors=True), transient=True, disable=not sys.stderr.isatty()
    )

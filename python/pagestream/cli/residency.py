"""``pagestream residency``: shows as a picture which pages of files are in the page cache."""

from __future__ import annotations

import itertools
import os
import sys
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any

import numpy as np
import typer
from rich.cells import cell_len

from pagestream._common.amounts import count, size
from pagestream.cli import _console, _output
from pagestream.cli._arguments import All, AsJson, Paths
from pagestream.cli._target import files_of, has_weights, open_weights, problem_of
from pagestream.files.mapped_file import MappedFile

if TYPE_CHECKING:
    import numpy.typing as npt
    from rich.console import Console

# Cells of a bar: in a pipe, at least on a terminal (names are shortened first), and in a picture. The first
# two include the frame.
_PIPE_CELLS, _LEAST_CELLS, _PNG_CELLS = 42, 16, 400
# Spaces between the columns of a table.
_GAP = 2
# From none to all of a cell's pages.
_SHADES = " ░▒▓█"
# Uncached pages are blanks. The frame shows the beginning and the end of the file.
_FRAME = "▕▏"
_PAUSE_SECONDS = 1.0
_SHOWN = 40


@dataclass(frozen=True)
class Row:
    """A file, or a tensor in a file.

    Attributes:
        name: Its path, or the tensor's name.
        nbytes: Its size.
        fraction: The cached share of its pages; NaN if the kernel does not show it.
        method: How the kernel was asked; see `Residency`.
        pages: Whether each page is cached; None if only a sample was checked.
    """

    name: str
    nbytes: int
    fraction: float
    method: str
    pages: npt.NDArray[np.bool_] | None


def residency(
    paths: Paths,
    tensors: Annotated[
        bool, typer.Option("--tensors", help="Show a row for each tensor of safetensors files.")
    ] = False,
    png: Annotated[
        str | None, typer.Option(help="Draw the picture into this file (needs matplotlib).")
    ] = None,
    watch: Annotated[bool, typer.Option("--watch", help="Draw again each second, until Ctrl-C.")] = False,
    rounds: Annotated[
        int | None, typer.Option(min=1, help="With --watch: end after so many pictures.")
    ] = None,
    all_: All = False,
    as_json: AsJson = False,
) -> None:
    """Show which pages are in the page cache, as a bar for each file.

    A bar shows a file from its beginning to its end.

    Example: pagestream residency /mnt/models/llama --tensors
    """
    if rounds is not None and not watch:
        message = f"--rounds {rounds} needs --watch"
        raise ValueError(message)
    if watch:
        if other := "--json" if as_json else "--png" if png else None:
            message = f"--watch draws on the terminal, and {other} does not: use one of them"
            raise ValueError(message)
        problems = _watch(paths, rounds, tensors=tensors, all_=all_)
    else:
        rows, problems = _rows_of(paths, tensors=tensors)
        if png:
            _draw(rows, png)
        if as_json:
            _output.print_json(list(map(_facts, rows)))
        else:
            _print(_console.console(), rows, tensors=tensors, all_=all_)
    _output.end_if_any(problems)


def _watch(paths: list[str], rounds: int | None, *, tensors: bool, all_: bool) -> list[str]:
    """Draws the bars repeatedly until Ctrl-C, and returns the problems of the last round."""
    console = _console.console()
    problems: list[str] = []
    try:
        for number in itertools.count(1):
            rows, problems = _rows_of(paths, tensors=tensors)
            # This does nothing in a pipe, which receives one picture below the other.
            console.clear()
            _print(console, rows, tensors=tensors, all_=all_)
            sys.stdout.flush()
            if number == rounds:
                break
            _pause()
    except KeyboardInterrupt:
        pass
    return problems


def _pause() -> None:
    time.sleep(_PAUSE_SECONDS)


def _rows_of(paths: list[str], *, tensors: bool) -> tuple[list[Row], list[str]]:
    """Returns the rows of all paths, and the problems of incomplete checkpoints."""
    rows: list[Row] = []
    problems: list[str] = []
    for path in paths:
        of_path, problems_of_path = _rows(path, tensors=tensors)
        rows += of_path
        problems += problems_of_path
    return rows, problems


def _print(console: Console, rows: list[Row], *, tensors: bool, all_: bool) -> None:
    shown = rows if all_ else rows[:_SHOWN]
    _print_bars(console, shown, "tensor" if tensors else "file")
    if len(shown) < len(rows):
        console.print(f"… and {count(len(rows) - len(shown), 'row')} more: --all shows them")
    known = [row for row in rows if not np.isnan(row.fraction)]
    cached_bytes = sum(row.fraction * row.nbytes for row in known)
    console.print(f"{size(cached_bytes)} of {size(sum(row.nbytes for row in known))} in the page cache")


def _print_bars(console: Console, rows: list[Row], kind: str) -> None:
    """Prints a line for each row, on a terminal within its width."""
    sizes = [size(row.nbytes) for row in rows]
    shares = [_output.percent(row.fraction) for row in rows]
    names, cells = [row.name for row in rows], _PIPE_CELLS
    if sys.stdout.isatty():
        figures = _widest(["size", *sizes]) + _widest(["cached", *shares]) + 3 * _GAP
        folder, names, cells = _fitted(names, console.width - figures)
        if folder:
            console.print(f"in {folder}", soft_wrap=True)
    made = _console.table(kind, "size", "cached", "pages", right=("size", "cached"))
    for row, name, nbytes, share in zip(rows, names, sizes, shares, strict=True):
        bar = "a sample" if row.pages is None else _bar(_parts(row.pages, cells - len(_FRAME)))
        made.add_row(name, nbytes, share, bar)
    console.print(made)


def _fitted(names: list[str], room: int) -> tuple[str, list[str], int]:
    """Shares the columns of a terminal between names and bars.

    Returns:
        The folder that the names omit, or an empty string; the names; and the number of cells of a bar.
    """
    most, folder = max(room - _LEAST_CELLS, _LEAST_CELLS), ""
    if _widest(names) > most:
        common = os.path.commonprefix(names)  # noqa: RUF071 - the next line cuts it at a slash
        folder = common[: common.rfind("/") + 1]
        names = [name.removeprefix(folder) for name in names]
    half = most // 2
    # Shorten the middle, which is the least important: numbers of shards and layers are on both sides of it.
    names = [
        name if cell_len(name) <= most else f"{name[: most - half - 1]}…{name[-half:]}" for name in names
    ]
    return folder, names, max(room - _widest(names), _LEAST_CELLS)


def _widest(texts: list[str]) -> int:
    return max(map(cell_len, texts), default=0)


def _rows(path: str, *, tensors: bool) -> tuple[list[Row], list[str]]:
    """Returns the rows of a path, and the problems of an incomplete checkpoint."""
    if not tensors or not has_weights(path):
        files, problems = files_of([path])
        return [_row(_output.short(file), file, 0, None) for file in files], problems
    with open_weights(path, ahead=False, partly=True) as weights:
        found = [weights.info(name) for name in weights]
        problem = problem_of(weights)
    rows = [_row(each.name, each.path, each.offset, each.nbytes) for each in found]
    return rows, [f"{path}: {problem}"] if problem else []


def _row(name: str, path: str, offset: int, nbytes: int | None) -> Row:
    with MappedFile(path) as file:
        length = file.size if nbytes is None else nbytes
        found = file.residency(offset, length)
    return Row(name, length, found.fraction if length else 1.0, found.method, found.pages)


def _parts(pages: npt.NDArray[np.bool_], cells: int) -> npt.NDArray[np.float64]:
    """Divides pages into `cells` equal parts. Returns the cached share of each part."""
    if not len(pages):
        return np.zeros(0)
    bounds = np.linspace(0, len(pages), min(cells, len(pages)) + 1).astype(np.int64)
    return np.add.reduceat(pages, bounds[:-1], dtype=np.float64) / np.diff(bounds)


def _bar(cells: npt.NDArray[np.float64]) -> str:
    """Returns a framed shade for each part. The lightest means no cached page, the darkest all pages."""
    most = len(_SHADES) - 1
    shades = "".join(
        _SHADES[most if share == 1 else 0 if share == 0 else 1 + min(int(share * (most - 1)), most - 2)]
        for share in cells
    )
    return shades.join(_FRAME)


def _facts(row: Row) -> dict[str, Any]:
    fraction = None if np.isnan(row.fraction) else row.fraction
    return {"name": row.name, "nbytes": row.nbytes, "fraction": fraction, "method": row.method}


def _draw(rows: list[Row], path: str) -> None:
    """Draws a bar for each row.

    Raises:
        ImportError: matplotlib is not installed.
    """
    figure = _output.matplotlib_figure()(figsize=(10, 0.6 + 0.3 * len(rows)), layout="constrained")
    axes = figure.subplots()
    for number, row in enumerate(rows):
        cells = np.full(1, row.fraction) if row.pages is None else _parts(row.pages, _PNG_CELLS)
        if len(cells):
            axes.imshow(
                cells[None, :],
                extent=(0, 1, number + 0.4, number - 0.4),
                aspect="auto",
                cmap="Blues",
                vmin=0,
                vmax=1,
            )
    axes.set(xlim=(0, 1), ylim=(len(rows) - 0.5, -0.5), xlabel="place in the file")
    axes.set_yticks(range(len(rows)), [f"{row.name} ({_output.percent(row.fraction)})" for row in rows])
    axes.set_xticks([0, 0.5, 1], ["beginning", "middle", "end"])
    figure.savefig(path, dpi=120)

"""``pagestream bench``: compares pagestream with other readers of the same files, on this machine."""

from __future__ import annotations

import statistics
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from pagestream._common.amounts import size
from pagestream._common.checks import one_of
from pagestream.cli import _console, _output
from pagestream.cli._arguments import AsJson
from pagestream.cli._contests import (
    Contest,
    can_be_cold,
    of_tokens,
    of_weights,
    write_checkpoint,
    write_token_file,
)
from pagestream.cli.field import suite as field

if TYPE_CHECKING:
    from rich.console import Console


@dataclass(frozen=True)
class _Scale:
    """The amount of work: rounds, seconds per turn, and bytes per file."""

    rounds: int
    seconds: float
    nbytes: int


_QUICK, _FULL = _Scale(3, 0.4, 128 << 20), _Scale(5, 1.5, 512 << 20)
_COLUMNS = ("median", "lowest", "highest")
# The longest name of a way, and a rate of seven digits.
_WAY_COLUMNS, _RATE_COLUMNS = 32, 9
_MEBIBYTE, _TWO_DIGITS = 1 << 20, 10
# Ratios that round to 1.00.
_EQUAL = 0.005
_QUICK_FIELD, _FIELD = field.Scale(1, 128 << 20), field.Scale(3, 1 << 30)


@dataclass(frozen=True)
class Result:
    """The speed of a way.

    Attributes:
        contest: The work.
        way: The method and the library.
        unit: The unit of work.
        rate: Units per second, the median of the rounds.
        low: The lowest rate of a round.
        high: The highest rate of a round.
        is_ours: Whether it is pagestream's way.
    """

    contest: str
    way: str
    unit: str
    rate: float
    low: float
    high: float
    is_ours: bool


def bench(
    folder: Annotated[
        str | None, typer.Option(help="Write the files here, on the disk to be measured.")
    ] = None,
    quick: Annotated[bool, typer.Option("--quick", help="Take half a minute instead of two.")] = False,
    suite: Annotated[
        str, typer.Option(help='"usual", or "field": all installed loaders, in up to 30 minutes.')
    ] = "usual",
    png: Annotated[
        str | None, typer.Option(help="Draw the results into this file (needs matplotlib).")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Measure pagestream on this machine against np.memmap, torch's DataLoader and safetensors.

    Example: pagestream bench --quick --png bench.png
    """
    one_of("suite", suite, ("usual", "field"))
    if suite == "field":
        _field(folder, _QUICK_FIELD if quick else _FIELD, png, as_json=as_json)
        return
    scale = _QUICK if quick else _FULL
    with tempfile.TemporaryDirectory(prefix="pagestream-bench-", dir=folder) as inner:
        contests, remark = _contests(Path(inner), scale)
        results = [result for contest in contests for result in _held(contest, scale)]
    if png:
        _draw(results, png)
    if as_json:
        _output.print_json(results)
        return
    console = _console.console()
    for contest in contests:
        _print_contest(console, [result for result in results if result.contest == contest.title])
    if remark:
        console.print(remark)


def _print_contest(console: Console, results: list[Result]) -> None:
    """Prints a table that fits into 80 columns, and compares each of our ways with the best rival."""
    unit = "MiB" if results[0].unit == "bytes" else results[0].unit
    console.print(f"{results[0].contest} ({unit} a second)", style="bold")
    made = _console.table("", *_COLUMNS, right=_COLUMNS)
    # The tables of all contests are aligned with one another.
    made.columns[0].min_width = _WAY_COLUMNS
    for column in made.columns[1:]:
        column.min_width = _RATE_COLUMNS
    for result in results:
        rates = (result.rate, result.low, result.high)
        made.add_row(f"  {result.way}", *(_figure(rate, result.unit) for rate in rates))
    console.print(made)
    for verdict in _verdicts(results):
        console.print(f"→ {verdict}")
    console.print()


def _figure(rate: float, unit: str) -> str:
    """Returns a rate without its unit: bytes as MiB."""
    amount = rate / _MEBIBYTE if unit == "bytes" else rate
    return f"{amount:,.0f}" if amount >= _TWO_DIGITS else f"{amount:.2g}"


def _verdicts(results: list[Result]) -> list[str]:
    """Returns a sentence for each of our ways that compares it with the best rival."""
    best = max((result for result in results if not result.is_ours), key=lambda result: result.rate)
    return [_verdict(result, best) for result in results if result.is_ours]


def _verdict(ours: Result, best: Result) -> str:
    ratio = ours.rate / best.rate
    if abs(ratio - 1) < _EQUAL:
        return f"{ours.way} is as fast as {best.way}"
    if ratio < 1:
        return f"{ours.way} is slower than {best.way}, at {ratio:.0%} of its rate"
    return f"{ours.way} is {ratio:.2f} times as fast as {best.way}"


def _field(folder: str | None, scale: field.Scale, png: str | None, *, as_json: bool) -> None:
    """Measures all installed loaders, and prints a table for each case, and each of our losses."""
    progress = _console.console(to_errors=True)
    with tempfile.TemporaryDirectory(prefix="pagestream-bench-", dir=folder) as outer:
        inner = Path(outer, "files")
        inner.mkdir()
        findings, remarks = field.measured(inner, scale, lambda what: progress.print(f"… {what}"))
    losses = field.losses(findings)
    if png:
        _draw([_as_result(found) for found in findings if found.rates], png)
    if as_json:
        facts = {"findings": [found.as_dict() for found in findings], "losses": losses, "remarks": remarks}
        _output.print_json(facts)
        return
    console = _console.console()
    columns = ("MiB/s", "p50 ms", "p99 ms", "read", "CPU/GB", "memory")
    for case in dict.fromkeys(found.case for found in findings):
        here = [found for found in findings if found.case == case]
        made = _console.table("", *columns, right=columns)
        for found in here:
            made.add_row(found.loader, *_row(found))
        console.print(case, style="bold")
        console.print(made)
        for found in here:
            if found.outcome != "right":
                console.print(f"  {found.loader}: {found.outcome}")
        console.print()
    console.print("Where pagestream loses:" if losses else "pagestream loses nowhere.")
    for line in [*losses, "", *remarks]:
        console.print(f"  {line}" if line in losses else line)


def _row(found: field.Finding) -> tuple[str, ...]:
    if not found.rates:
        return ("",) * 6
    return (
        _figure(found.rate, "bytes"),
        f"{found.p50_seconds * 1000:.3g}",
        f"{found.p99_seconds * 1000:.3g}",
        f"{found.read_per_byte:.2f}",
        f"{found.cpu_seconds_per_gb:.2f}",
        size(found.anonymous_bytes),
    )


def _as_result(found: field.Finding) -> Result:
    return Result(
        found.case, found.loader, "bytes", found.rate, min(found.rates), max(found.rates), found.is_ours
    )


def _contests(folder: Path, scale: _Scale) -> tuple[list[Contest], str]:
    """Writes the files, and returns the contests with them, and a remark about skipped ones."""
    tokens, weights = str(folder / "tokens.bin"), str(folder / "model.safetensors")
    write_token_file(tokens, scale.nbytes)
    # A file system in memory has no cold files.
    kinds = [False, True] if can_be_cold(tokens) else [False]
    contests = [of_tokens(tokens, is_cold=is_cold) for is_cold in kinds]
    remarks = (
        [] if True in kinds else [f"cold files were not measured: what {folder.parent} holds stays in memory"]
    )
    try:
        write_checkpoint(weights, scale.nbytes)
    except ImportError as error:
        remarks.append(f"weights were not measured: {error}")
    else:
        contests += [of_weights(weights, is_cold=is_cold) for is_cold in kinds]
    return contests, "\n".join(remarks)


def _held(contest: Contest, scale: _Scale) -> list[Result]:
    """Lets all ways take turns, in a changing order."""
    rates: dict[str, list[float]] = {way: [] for way in contest.ways}
    names = list(contest.ways)
    for number in range(scale.rounds):
        first = number % len(names)
        for way in names[first:] + names[:first]:
            rates[way].append(contest.turn(way, scale.seconds, number))
    return [
        Result(
            contest.title,
            way,
            contest.unit,
            statistics.median(found),
            min(found),
            max(found),
            way.startswith(("pagestream", "TokenLoader")),
        )
        for way, found in rates.items()
    ]


def _rate(rate: float, unit: str) -> str:
    return f"{size(rate)}/s" if unit == "bytes" else f"{rate:,.0f} {unit}/s"


def _draw(results: list[Result], path: str) -> None:
    """Draws a bar for each way, grouped by contest.

    Raises:
        ImportError: matplotlib is not installed.
    """
    figure_class = _output.matplotlib_figure()
    titles = list(dict.fromkeys(result.contest for result in results))
    figure = figure_class(figsize=(8, 0.6 + 0.35 * (len(results) + len(titles))), layout="constrained")
    all_axes = figure.subplots(len(titles), squeeze=False)[:, 0]
    for axes, title in zip(all_axes, titles, strict=True):
        here = [result for result in results if result.contest == title]
        colours = ["tab:blue" if result.is_ours else "tab:gray" for result in here]
        bars = axes.barh([result.way for result in here], [result.rate for result in here], color=colours)
        axes.bar_label(bars, [_rate(result.rate, result.unit) for result in here], padding=3)
        axes.set_title(title, loc="left", fontsize="medium")
        axes.invert_yaxis()
        axes.margins(x=0.2)
        axes.xaxis.set_visible(False)
        axes.spines[["top", "right", "bottom"]].set_visible(False)
    figure.savefig(path, dpi=120)

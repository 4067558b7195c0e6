"""``pagestream bench``: this machine against what else reads the same files."""

from __future__ import annotations

import statistics
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import typer

from pagestream._common.amounts import size
from pagestream._common.checks import one_of
from pagestream.cli import _output
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


@dataclass(frozen=True)
class _Scale:
    """How much is measured: rounds, seconds of a turn, bytes of each file."""

    rounds: int
    seconds: float
    nbytes: int


_QUICK, _FULL = _Scale(3, 0.4, 128 << 20), _Scale(5, 1.5, 512 << 20)
_QUICK_FIELD, _FIELD = field.Scale(1, 128 << 20), field.Scale(3, 1 << 30)


@dataclass(frozen=True)
class Result:
    """What a way reached.

    Attributes:
        contest: The work.
        way: Who did it.
        unit: What is counted.
        rate: Units a second, the median of the rounds.
        low: The lowest of the rounds.
        high: The highest.
        is_ours: Whether it is pagestream's.
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
        str | None, typer.Option(help="Where the files are written, on the disk to be measured.")
    ] = None,
    quick: Annotated[bool, typer.Option("--quick", help="In half a minute instead of two.")] = False,
    suite: Annotated[
        str, typer.Option(help='"usual"; or "field": all loaders that are installed, in up to 30 minutes.')
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
    console = _output.console()
    made = _output.table("", "rate", "span", "pagestream is", right=("rate", "span", "pagestream is"))
    for contest in contests:
        of_contest = [result for result in results if result.contest == contest.title]
        ours, *others = of_contest
        made.add_row(contest.title)
        for result in of_contest:
            times = (
                f"{ours.rate / result.rate:.2f} times as fast"
                if result in others and not result.is_ours
                else ""
            )
            span = f"{_rate(result.low, result.unit)} to {_rate(result.high, result.unit)}"
            made.add_row(f"  {result.way}", _rate(result.rate, result.unit), span, times)
    console.print(made)
    if remark:
        console.print(remark)


def _field(folder: str | None, scale: field.Scale, png: str | None, *, as_json: bool) -> None:
    """Measures all loaders that are installed, and prints a table for each case, and each of our losses."""
    progress = _output.console(to_errors=True)
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
    console = _output.console()
    columns = ("rate", "p50 / p99", "read", "CPU s/GB", "memory", "outcome")
    for case in dict.fromkeys(found.case for found in findings):
        made = _output.table(case, *columns, right=columns[:-1])
        for found in findings:
            if found.case == case:
                made.add_row(found.loader, *_row(found))
        console.print(made, "")
    console.print("Where pagestream loses:" if losses else "pagestream loses nowhere.")
    for line in [*losses, "", *remarks]:
        console.print(f"  {line}" if line in losses else line)


def _row(found: field.Finding) -> tuple[str, ...]:
    if not found.rates:
        return ("", "", "", "", "", found.outcome)
    return (
        f"{size(found.rate)}/s",
        f"{found.p50_seconds * 1000:.3g} / {found.p99_seconds * 1000:.3g} ms",
        f"{found.read_per_byte:.2f}",
        f"{found.cpu_seconds_per_gb:.2f}",
        size(found.anonymous_bytes),
        found.outcome,
    )


def _as_result(found: field.Finding) -> Result:
    return Result(
        found.case, found.loader, "bytes", found.rate, min(found.rates), max(found.rates), found.is_ours
    )


def _contests(folder: Path, scale: _Scale) -> tuple[list[Contest], str]:
    """Writes the files, and returns what is measured with them, and what is not."""
    tokens, weights = str(folder / "tokens.bin"), str(folder / "model.safetensors")
    write_token_file(tokens, scale.nbytes)
    # What a file system in memory has cannot be cold.
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
    """Lets all ways take turns, in an order that changes."""
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
    """Draws a bar for each way, those of each contest together.

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

"""Draws a picture of the run: the loss curve, and bars for each comparison."""

from __future__ import annotations

import functools
import math
from typing import TYPE_CHECKING

import matplotlib as mpl

mpl.use("Agg")

from matplotlib import pyplot as plt
from matplotlib.patches import Patch

from files import written_whole

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path

    from matplotlib.axes import Axes

    from measure import Measured, Row
    from train import LossCurve

OURS = "#1b7f5c"
THEIRS = "#9aa1a8"
LOSS = "#2b5c9e"


def draw(
    path: Path,
    curve: LossCurve,
    *,
    batches: list[Row],
    cold: list[Row],
    weights: list[Row],
    memory: list[Row],
) -> None:
    """Writes the picture as a PNG.

    Args:
        path: The file to write.
        curve: The loss curve.
        batches: Rows of `compare_tokens`.
        cold: Rows of `compare_cold`.
        weights: Rows of `compare_weights`.
        memory: Rows of `compare_memory`, which may be empty.
    """
    figure, axes = plt.subplot_mosaic(
        [["loss", "batches"], ["cold", "memory"], ["weights", "weights"]],
        figsize=(13, 12.5),
        layout="constrained",
    )
    _loss(axes["loss"], curve)

    def million_tokens(row: Row, seconds: float) -> float:
        return row.work_tokens / seconds / 1e6

    rate = "million tokens a second"
    title = "Random batches, page cache warm (more is better)"
    _bars(axes["batches"], batches, title=title, label=rate, value=million_tokens)
    title = "Random batches, page cache cold (more is better)"
    _bars(axes["cold"], cold, title=title, label=rate, value=million_tokens)
    _bars(
        axes["weights"],
        weights,
        title="Opening and reading the weights (less is better)",
        label="milliseconds",
        value=lambda _, seconds: 1e3 * seconds,
    )
    _bars(
        axes["memory"],
        memory,
        title="Growth of own memory, RssAnon (less is better)",
        label="MiB",
        value=lambda _, size_bytes: size_bytes / 2**20,
    )
    with written_whole(path) as partial:
        figure.savefig(partial, format="png", dpi=110)
    plt.close(figure)


def _loss(axes: Axes, curve: LossCurve) -> None:
    steps = range(1, len(curve.train) + 1)
    axes.plot(steps, curve.train, color=THEIRS, linewidth=0.8, label="training batch")
    axes.plot(curve.validation_steps, curve.validation, "o-", color=LOSS, markersize=4, label="validation")
    axes.set_title("Loss of the model trained here")
    axes.set_xlabel("step")
    axes.set_ylabel("loss, nats per token")
    axes.grid(alpha=0.3)
    axes.legend(frameon=False)
    _without_box(axes)


def _bars(
    axes: Axes, rows: Sequence[Row], *, title: str, label: str, value: Callable[[Row, float], float]
) -> None:
    """Draws two horizontal bars for each row, with names on the left. The whiskers are quartiles."""
    names = []
    for number, row in enumerate(rows):
        for side, color, name, measured in (
            (0, OURS, row.ours, row.our_value),
            (1, THEIRS, row.theirs, row.their_value),
        ):
            _bar(axes, 2.6 * number + side, color, measured, functools.partial(value, row))
            names.append((2.6 * number + side, f"{name}\n{row.case}" if side == 0 else name))
    if not rows:
        axes.text(0.5, 0.5, "not counted by this kernel", ha="center", transform=axes.transAxes)
    axes.legend(
        handles=[Patch(color=OURS, label="pagestream"), Patch(color=THEIRS, label="the other")], frameon=False
    )
    axes.set_yticks([place for place, _ in names], [name for _, name in names], fontsize=8)
    axes.invert_yaxis()
    axes.set_title(title)
    axes.set_xlabel(label)
    axes.margins(x=0.15)
    axes.grid(axis="x", alpha=0.3)
    _without_box(axes)


def _bar(axes: Axes, place: float, color: str, measured: Measured, value: Callable[[float], float]) -> None:
    middle = value(measured.median)
    ends = sorted((value(measured.low), value(measured.high)))
    whiskers = [[max(0.0, middle - ends[0])], [max(0.0, ends[1] - middle)]]
    axes.barh(place, middle, height=0.9, color=color, xerr=whiskers, ecolor="#333333", capsize=2)
    axes.annotate(
        plain(middle), (ends[1], place), xytext=(5, 0), textcoords="offset points", va="center", fontsize=8
    )


def plain(number: float) -> str:
    """Writes a number with three significant digits, or all of its whole part, and no exponent."""
    decimals = max(0, 2 - math.floor(math.log10(abs(number)))) if number else 0
    return f"{number:,.{decimals}f}"


def _without_box(axes: Axes) -> None:
    axes.spines[["top", "right"]].set_visible(False)

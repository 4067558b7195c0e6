"""Times rivals side by side, and formats the rows of the resulting table."""

from __future__ import annotations

import dataclasses
import gc
import statistics
import time
from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

Verdict = Literal["won", "even", "lost"]


@dataclasses.dataclass(frozen=True)
class Measured:
    """One contender's result: the median of the rounds, and the quartiles around it."""

    median: float
    low: float
    high: float

    @classmethod
    def of(cls, values: list[float]) -> Measured:
        """Summarises the rounds' values."""
        if len(values) < 2:
            return cls(values[0], values[0], values[0])
        low, median, high = statistics.quantiles(values, n=4, method="inclusive")
        return cls(median, low, high)


@dataclasses.dataclass(frozen=True)
class Row:
    """One line of the table: the same work with pagestream and with another library. Less is better.

    Attributes:
        group: The kind of measurement, such as ``"batches"``.
        case: The work.
        ours: The pagestream function.
        theirs: The other library's function.
        unit: ``"seconds"`` or ``"bytes"``.
        our_value: pagestream's result.
        their_value: The other library's result.
        work_tokens: Tokens per unit of this work, or 0 if it delivers none.
    """

    group: str
    case: str
    ours: str
    theirs: str
    unit: Literal["seconds", "bytes"]
    our_value: Measured
    their_value: Measured
    work_tokens: int = 0

    @property
    def ratio(self) -> float | None:
        """Returns how many times as much the other library needs. None for memory, which may be 0."""
        return self.their_value.median / self.our_value.median if self.unit == "seconds" else None

    @property
    def verdict(self) -> Verdict:
        """Returns the verdict: a slower median loses, and only quartiles that do not overlap win.

        Memory is counted in pages of a process that also does other work, so a difference below a quarter
        MiB is a tie.
        """
        ours, theirs = self.our_value, self.their_value
        if self.unit == "bytes":
            margin_bytes = 2**18
            more_bytes = ours.median - theirs.median
            return "even" if abs(more_bytes) <= margin_bytes else "lost" if more_bytes > 0 else "won"
        if ours.median > theirs.median:
            return "lost"
        return "won" if ours.high < theirs.low else "even"

    def as_facts(self) -> dict[str, object]:
        """Returns the row as plain values, for JSON."""
        return {**dataclasses.asdict(self), "ratio": self.ratio, "verdict": self.verdict}


def alternate(
    contenders: Mapping[str, Callable[[], object]], *, rounds: int, round_seconds: float
) -> dict[str, Measured]:
    """Times the contenders in alternating rounds, so that a disturbance affects all of them.

    Args:
        contenders: The functions by name. Each is first called once without timing.
        rounds: The number of turns for each contender. Every other round reverses the order.
        round_seconds: The approximate duration of a turn. Short calls are repeated to fill it.

    Returns:
        The seconds per call, by name.
    """
    repeats = {name: max(1, int(round_seconds / _seconds(call, 1))) for name, call in contenders.items()}
    seconds: dict[str, list[float]] = {name: [] for name in contenders}
    names = list(contenders)
    for _ in range(rounds):
        gc.collect()
        for name in names:
            seconds[name].append(_seconds(contenders[name], repeats[name]))
        names.reverse()
    return {name: Measured.of(values) for name, values in seconds.items()}


def _seconds(call: Callable[[], object], repeats: int) -> float:
    begin = time.perf_counter()
    for _ in range(repeats):
        call()
    return (time.perf_counter() - begin) / repeats


def table(rows: list[Row]) -> str:
    """Returns the rows as aligned text, with a heading for each group."""
    cells = [_cells(row) for row in rows]
    widths = [max(len(column) for column in columns) for columns in zip(*cells, strict=True)]
    lines = []
    group = None
    for row, texts in zip(rows, cells, strict=True):
        if row.group != group:
            group = row.group
            lines.append(f"\n   {group}")
        lines.append("   " + "  ".join(map(str.ljust, texts, widths)).rstrip())
    return "\n".join(lines)


def _cells(row: Row) -> list[str]:
    unit = "MiB" if row.unit == "bytes" else "Mtok/s" if row.work_tokens else "ms"
    ratio = "" if row.ratio is None else f"{row.ratio:.2f}x"
    verdict = row.verdict.upper() if row.verdict == "lost" else row.verdict
    ours, theirs = _text(row, row.our_value), _text(row, row.their_value)
    return [row.case, row.ours, ours, unit, "| " + row.theirs, theirs, unit, ratio, verdict]


def _text(row: Row, value: Measured) -> str:
    if row.unit == "bytes":
        return f"{value.median / 2**20:.2f}"
    if row.work_tokens:
        million = row.work_tokens / 1e6
        return f"{million / value.median:.1f} ({million / value.high:.1f}-{million / value.low:.1f})"
    return f"{1e3 * value.median:.2f} ({1e3 * value.low:.2f}-{1e3 * value.high:.2f})"

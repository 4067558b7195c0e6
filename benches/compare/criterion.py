"""The results of `cargo bench` from the last hour: criterion's medians with their 95 % intervals.

Criterion writes `GROUP/FUNCTION/PARAMETER/new/estimates.json`, with some characters of the names replaced.
The original names are in `benchmark.json` in the same folder.
"""

import json
import os
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from harness import ROOT, Row

MOST_AGE_SECONDS = 3600


@dataclass
class Estimate:
    """One benchmark: its names, and the median and the interval's ends for one element (or one iteration)."""

    group: str
    function: str
    parameter: str
    seconds: list[float]


def estimates() -> Iterator[Estimate]:
    target = Path(os.environ.get("CARGO_TARGET_DIR", ROOT / "target"))
    for file in sorted((target / "criterion").glob("**/new/estimates.json")):
        if time.time() - file.stat().st_mtime > MOST_AGE_SECONDS:
            continue
        names = json.loads(file.with_name("benchmark.json").read_text())
        median = json.loads(file.read_text())["median"]
        interval = median["confidence_interval"]
        elements = (names["throughput"] or {}).get("Elements", 1)
        nanoseconds = interval["lower_bound"], median["point_estimate"], interval["upper_bound"]
        seconds = [value / elements * 1e-9 for value in nanoseconds]
        yield Estimate(names["group_id"], names["function_id"] or "", names["value_str"] or "", seconds)


def copies(found: list[Estimate]) -> list[Row]:
    """The copy that survives bus errors, compared with memcpy."""
    rows: dict[tuple[str, int], Row] = {}
    for one in found:
        if one.group.startswith("copy"):
            key = (one.group, int(one.parameter))
            case = f"{one.group.replace('/', ', ')}, {key[1]:,} bytes"
            rows.setdefault(key, Row(case, "fallible")).figures[one.function] = one.seconds
    return [rows[key] for key in sorted(rows)]


def kernels(found: list[Estimate]) -> list[Row]:
    """Seconds per token: rows by the gatherer, compared with the plain loop and with writes alone."""
    limit = "write_only_2_threads"
    rows: dict[tuple[str, int], Row] = {}
    for one in found:
        if one.group.startswith("gatherer/"):
            _, pair, length = one.group.split("/")
            case = f"{pair.replace('_', ' to ')}, windows of {length}"
            row = rows.setdefault(
                (pair, int(length)), Row(case, "gatherer", goals={"plain": 0.95}, limits=["plain", limit])
            )
            row.figures[one.function or one.parameter] = one.seconds
    return [rows[key] for key in sorted(rows)]


def orders(found: list[Estimate]) -> list[Row]:
    """Seconds per index of the permutation and per draw of the schedule."""
    rows: list[tuple[tuple[str, str, int], Row]] = []
    for one in found:
        if one.group in {"permutation", "schedule"}:
            number = int(one.parameter)
            size = f"of {number:,}" if one.group == "permutation" else f"{number} at a time"
            ours = f"{one.group}, {one.function}"
            goals = {ours: 40e-9} if one.function == "at" else {}
            row = Row(size, ours, {ours: one.seconds}, goals=goals)
            rows.append(((one.group, one.function, number), row))
    return [row for _, row in sorted(rows, key=lambda entry: entry[0])]


def headers(found: list[Estimate]) -> list[Row]:
    """Parsing headers, compared with the crate `safetensors`."""
    rows: dict[tuple[str, int], Row] = {}
    for one in found:
        if one.group.startswith("parse"):
            key = (one.group, int(one.parameter))
            row = rows.setdefault(key, Row(f"{one.group}, {key[1]:,} tensors", "pagestream"))
            row.figures[one.function] = one.seconds
    return [rows[key] for key in sorted(rows)]


TITLES = {
    "the fallible copy against memcpy": copies,
    "rows of a batch, one thread, page cache warm; time of a token": kernels,
    "orders; time of an index or a draw": orders,
    "parsing headers": headers,
}


def results() -> dict[str, list[Row]]:
    """Returns tables of the benchmarks found. The figures are criterion's median and interval."""
    found = list(estimates())
    tables = {
        f"{title} (criterion, 95 % interval of the median)": rows(found) for title, rows in TITLES.items()
    }
    return {title: rows for title, rows in tables.items() if rows}

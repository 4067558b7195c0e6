"""Rivals side by side: alternating rounds, medians with quartiles, machine facts."""

import gc
import json
import os
import platform
import statistics
import subprocess
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

ROOT = Path(__file__).parents[2]


@dataclass
class Row:
    """One case: how long each contestant took, in seconds for one call."""

    case: str
    ours: str
    seconds: dict[str, list[float]] = field(default_factory=dict)

    def median(self, name: str) -> float:
        return statistics.median(self.seconds[name])

    def quartiles(self, name: str) -> tuple[float, float]:
        first, _, third = statistics.quantiles(self.seconds[name], n=4)
        return first, third

    def ratio(self, rival: str) -> float:
        """How many times as long as we the rival takes; below 1 we have lost."""
        return self.median(rival) / self.median(self.ours)


def compare(
    case: str,
    contestants: dict[str, Callable[[], object]],
    *,
    rounds: int = 15,
    seconds_per_sample: float = 0.02,
) -> Row:
    """Times the contestants in turn, the first being ours.

    Each is called as often as fills `seconds_per_sample`, found out once; the order turns with each round.
    """
    names = list(contestants)
    row = Row(case, names[0], {name: [] for name in names})
    repeats = {}
    for name, call in contestants.items():
        call()
        start = time.perf_counter()
        call()
        once = max(time.perf_counter() - start, 1e-7)
        repeats[name] = max(1, int(seconds_per_sample / once))
    for turn in range(rounds):
        for name in names[turn % len(names) :] + names[: turn % len(names)]:
            call, repeat = contestants[name], repeats[name]
            gc.collect()
            gc.disable()
            start = time.perf_counter()
            for _ in range(repeat):
                call()
            row.seconds[name].append((time.perf_counter() - start) / repeat)
            gc.enable()
    return row


def human(seconds: float) -> str:
    for unit, scale in (("s", 1.0), ("ms", 1e-3), ("µs", 1e-6)):
        if seconds >= scale:
            return f"{seconds / scale:.3g} {unit}"
    return f"{seconds / 1e-9:.3g} ns"


def table(title: str, rows: list[Row]) -> str:
    """A Markdown table of medians, quartiles and ratios."""
    lines = [f"### {title}", "", "| case | ours | rival | rival / ours |", "|---|---|---|---|"]
    for row in rows:
        low, high = row.quartiles(row.ours)
        ours = f"{row.ours}: {human(row.median(row.ours))} ({human(low)} to {human(high)})"
        for rival in row.seconds:
            if rival == row.ours:
                continue
            low, high = row.quartiles(rival)
            ratio = row.ratio(rival)
            verdict = f"{ratio:.2f}" if ratio >= 1 else f"{ratio:.2f} **lost**"
            lines.append(
                f"| {row.case} | {ours} | {rival}: {human(row.median(rival))}"
                f" ({human(low)} to {human(high)}) | {verdict} |"
            )
    return "\n".join(lines) + "\n"


def machine() -> dict[str, object]:
    """Facts without which figures mean nothing."""
    lines = Path("/proc/cpuinfo").read_text().splitlines()
    processor = next((line.split(":")[1].strip() for line in lines if line.startswith("model name")), "?")
    packages = {}
    for name in ("pagestream", "numpy", "torch", "safetensors"):
        try:
            packages[name] = version(name)
        except PackageNotFoundError:
            packages[name] = "not installed"
    commit = subprocess.run(
        ["git", "rev-parse", "--short", "HEAD"], cwd=ROOT, capture_output=True, text=True, check=False
    )
    return {
        "processor": processor,
        "cores": os.cpu_count(),
        "memory_gib": round(os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") / 2**30, 1),
        "kernel": platform.release(),
        "python": platform.python_version(),
        "packages": packages,
        "commit": commit.stdout.strip(),
        "date": time.strftime("%Y-%m-%d"),
        "load_before": os.getloadavg()[0],
    }


def as_json(facts: dict[str, object], results: dict[str, list[Row]]) -> str:
    plain = {title: [asdict(row) for row in rows] for title, rows in results.items()}
    return json.dumps({"machine": facts, "results": plain}, indent=1)

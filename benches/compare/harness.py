"""Compares rivals side by side: alternating rounds, medians with quartiles, goals, machine facts."""

import gc
import os
import platform
import statistics
import subprocess
import time
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

ROOT = Path(__file__).parents[2]
PACKAGES = (
    "pagestream",
    "numpy",
    "torch",
    "safetensors",
    "runai-model-streamer",
    "fastsafetensors",
    "cattensors",
    "grain",
    "litdata",
    "megatron-core",
)


@dataclass
class Row:
    """One case with the measurements of each contestant, including `ours`.

    `goals` has the smallest desired ratio to each rival. For `ours` itself, it has the upper limit of the
    figure (or the lower limit, if more is better). `limits` names the contestants that are no rivals but the
    limit of the hardware.
    """

    case: str
    ours: str
    figures: dict[str, list[float]] = field(default_factory=dict)
    unit: str = "s"
    more_is_better: bool = False
    goals: dict[str, float] = field(default_factory=dict)
    limits: list[str] = field(default_factory=list)
    remarks: dict[str, str] = field(default_factory=dict)

    def median(self, name: str) -> float:
        return statistics.median(self.figures[name])

    def span(self, name: str) -> tuple[float, float]:
        """Returns the first and the third quartile, or the minimum and maximum of fewer than four figures."""
        if len(self.figures[name]) < 4:
            return min(self.figures[name]), max(self.figures[name])
        first, _, third = statistics.quantiles(self.figures[name], n=4, method="inclusive")
        return first, third

    def ratio(self, rival: str) -> float:
        """Returns how many times better than the rival we are. Below 1, the rival is better."""
        better, worse = (self.ours, rival) if self.more_is_better else (rival, self.ours)
        return self.median(better) / max(self.median(worse), 1e-12)

    def text(self, name: str) -> str:
        """Returns a contestant's name, median, span, number of rounds and remarks."""
        low, high = self.span(name)
        remark = f"; {self.remarks[name]}" if name in self.remarks else ""
        span = "" if low == high else f"{human(low, self.unit)} to {human(high, self.unit)}, "
        rounds = len(self.figures[name])
        count = f"{rounds} round{'s' if rounds > 1 else ''}"
        return f"{name}: {human(self.median(name), self.unit)} ({span}{count}){remark}"

    def verdict(self, rival: str) -> str:
        ratio, goal = self.ratio(rival), self.goals.get(rival)
        words = [f"{ratio:.2f}"]
        if round(ratio, 2) < 1 and rival not in self.limits:
            words.append("**lost**")
        if goal is not None:
            words.append(f"(goal {goal:g})" if ratio >= goal else f"(goal {goal:g}, **missed**)")
        return " ".join(words)

    def own_verdict(self) -> str:
        """Returns whether our own figure meets its goal."""
        goal = self.goals.get(self.ours)
        if goal is None:
            return ""
        reached = self.median(self.ours) >= goal if self.more_is_better else self.median(self.ours) <= goal
        word = "least" if self.more_is_better else "most"
        return f"at {word} {human(goal, self.unit)}{'' if reached else ', **missed**'}"


def compare(
    case: str,
    contestants: dict[str, Callable[[], object]],
    *,
    rounds: int = 15,
    seconds_per_sample: float = 0.02,
    times_a_call: int = 1,
    goals: dict[str, float] | None = None,
    limits: list[str] | None = None,
    within: dict[str, Callable[[], AbstractContextManager[object]]] | None = None,
) -> Row:
    """Times the contestants in turn, starting with ours.

    A sample repeats the call to fill `seconds_per_sample`. The number of repetitions is found once. The order
    rotates with each round. `times_a_call` is how many times a call does the work of one figure. `within` has
    a context for each contestant; entering and leaving it is not timed.
    """
    contexts = dict.fromkeys(contestants, nullcontext) | (within or {})
    names = list(contestants)
    row = Row(case, names[0], {name: [] for name in names}, goals=goals or {}, limits=limits or [])
    repeats = {}
    for name, call in contestants.items():
        with contexts[name]():
            call()
            start = time.perf_counter()
            call()
            once = max(time.perf_counter() - start, 1e-7)
        repeats[name] = max(1, int(seconds_per_sample / once))
    for turn in range(rounds):
        for name in in_turn(names, turn):
            call, repeat = contestants[name], repeats[name]
            with contexts[name]():
                gc.collect()
                gc.disable()
                start = time.perf_counter()
                for _ in range(repeat):
                    call()
                row.figures[name].append((time.perf_counter() - start) / repeat / times_a_call)
                gc.enable()
    return row


def in_turn(names: list[str], turn: int) -> list[str]:
    """Returns the names in the order of one round. Each round begins with another name."""
    first = turn % len(names)
    return names[first:] + names[:first]


def human(value: float, unit: str = "s") -> str:
    if unit != "s":
        digits = f"{value:,.0f}" if value >= 100 else f"{value:#.3g}"
        return f"{digits} {unit}"
    for name, scale in (("s", 1.0), ("ms", 1e-3), ("µs", 1e-6)):
        if value >= scale:
            return f"{value / scale:.3g} {name}"
    return f"{value / 1e-9:.3g} ns"


def table(title: str, rows: list[Row]) -> str:
    """Returns a Markdown table of medians, quartiles and ratios."""
    lines = [f"### {title}", "", "| case | ours | rival | times better |", "|---|---|---|---|"]
    for row in rows:
        ours = row.text(row.ours)
        rivals = [name for name in row.figures if name != row.ours]
        if row.ours in row.goals or not rivals:
            lines.append(f"| {row.case} | {ours} | | {row.own_verdict()} |")
            ours = "the same"
        for rival in rivals:
            lines.append(f"| {row.case} | {ours} | {row.text(rival)} | {row.verdict(rival)} |")
            ours = "the same"
    return "\n".join(lines) + "\n"


def machine() -> dict[str, object]:
    """Returns facts about the machine, which figures need as context."""
    lines = Path("/proc/cpuinfo").read_text().splitlines()
    processor = next((line.split(":")[1].strip() for line in lines if line.startswith("model name")), "?")
    packages = {}
    for name in PACKAGES:
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

"""Plain processes of one node that load the same checkpoint from a slow mount at the same time."""

import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from cold import ROOT, TOUCHED_BYTES, example, read_all
from fresh import USUAL_REQUEST_BYTES, Load, alternate
from harness import Row
from load_weights import used
from weight_files import written

sys.path.append(str(ROOT / "tests/python"))  # the tests mount the same file system
from support import real

TITLE = "a checkpoint of 1 GiB in 4 shards, loaded by processes that begin at the same time"
SHARDS, TENSORS, SHAPE = 4, 32, (2048, 2048)
NEEDED_BYTES = SHARDS * TENSORS * SHAPE[0] * SHAPE[1] * 2
DELAY_MS, ROUNDS = 10, 3
OURS = ["stream", "safe_open, installed"]
RIVALS = ["safetensors, mmap", "cattensors"]
COUNTS = (1, 2, 4, 8)
# Limits relative to the time of a single process, and to the bytes of the file.
MOST_TIME, MOST_BYTES = 1.15, 1.05
KILLED_AFTER_SECONDS = 0.7
# The other processes may take this much longer.
MOST_DELAY_SECONDS = 1.0


@dataclass(frozen=True)
class Case:
    """A number of processes on a mount. If `kills`, one of them is killed halfway."""

    count: int
    mount: str
    kills: bool = False


# By default, a FUSE mount drops the pages of a file whenever it is opened.
MOUNTS: dict[str, dict[str, bool]] = {
    "cached": {},
    "cached, pages kept": {"keep_cache": True},
    "direct_io": {"direct_io": True},
}
CASES = {
    f"{count} process{'es' if count > 1 else ''}, {mount}": Case(count, mount)
    for mount in MOUNTS
    for count in COUNTS
} | {f"4 processes, one killed, {mount}": Case(4, mount, kills=True) for mount in MOUNTS}


@dataclass
class Together(Load):
    """The time of the last process, and the processor time of all."""

    cpu_seconds: float = 0.0


def load(way: str, case: Case, source: Path, sums: dict[str, int]) -> Together:
    read_all(source)
    with real.slow_fuse(
        source,
        source.with_name("slow"),
        delay_ms=DELAY_MS,
        request_bytes=USUAL_REQUEST_BYTES,
        program=example("slow_fuse"),
        **MOUNTS[case.mount],
    ) as slow:
        found = at_the_same_time(way, case, slow.path)
    if any(each["sums"] != sums for each in found):
        message = f"{way} gave other bytes"
        raise AssertionError(message)
    if slow.counts["read_bytes"] < NEEDED_BYTES:
        message = f"{way}: the mount delivered {slow.counts['read_bytes']} bytes: it was not cold"
        raise AssertionError(message)
    return Together(
        seconds=max(each["seconds"] for each in found),
        first_seconds=max(each["first_seconds"] for each in found),
        delivered_bytes=slow.counts["read_bytes"],
        most_in_flight=slow.counts["most_in_flight"],
        cpu_seconds=sum(each["cpu_seconds"] for each in found),
    )


def at_the_same_time(way: str, case: Case, folder: Path) -> list[dict[str, Any]]:
    """Returns the output of processes that started to load once all were ready, without the killed one."""
    program = str(Path(__file__).with_name("load_weights.py"))
    command = [sys.executable, program, way, str(folder), "--wait"]
    pipe = subprocess.PIPE
    # The page cache has the bytes once, and each process has them at most once.
    environment = os.environ | {TOUCHED_BYTES: str((case.count + 1) * NEEDED_BYTES // case.count)}
    environment["PAGESTREAM_SHARE"] = "on"
    with ExitStack() as ends:
        processes = [
            ends.enter_context(
                subprocess.Popen(
                    command,
                    stdin=pipe,
                    stdout=pipe,
                    stderr=subprocess.DEVNULL,
                    text=True,
                    env=environment,
                )
            )
            for _ in range(case.count)
        ]
        for process in processes:
            assert process.stdout is not None
            if process.stdout.readline() != "ready\n":
                message = f"{way}: a process ended before it began to load"
                raise RuntimeError(message)
        for process in processes:
            assert process.stdin is not None
            process.stdin.write("\n")
            process.stdin.flush()
        if case.kills:
            time.sleep(KILLED_AFTER_SECONDS)
            processes.pop().kill()
        return [json.loads(process.communicate()[0].splitlines()[-1]) for process in processes]


def measure(folder: Path, cases: list[str]) -> list[Row]:
    rows = []
    with tempfile.TemporaryDirectory(dir=folder) as inner:
        source = Path(inner) / "source"
        tensors = written(source, shards=SHARDS, tensors=TENSORS, shape=SHAPE)
        sums = {name: used(array) for name, array in tensors}
        of_all: dict[tuple[str, Case], list[float]] = {}
        for name in cases:
            case = CASES[name]
            rivals = [] if case.kills else RIVALS
            found = alternate(
                [*OURS, *rivals], lambda way, case=case: load(way, case, source, sums), rounds=ROUNDS
            )
            for ours in OURS:
                figures = {way: [each.seconds for each in found[way]] for way in (ours, *rivals)}
                remarks = {way: told(found[way]) for way in figures}
                goals = dict.fromkeys(rivals, 10.0)
                of_all[ours, case] = figures[ours]
                one, all_alive = Case(1, case.mount), Case(case.count, case.mount)
                if case.kills and (ours, all_alive) in of_all:
                    figures[f"{ours}, none killed"] = of_all[ours, all_alive]
                    goals[ours] = statistics.median(of_all[ours, all_alive]) + MOST_DELAY_SECONDS
                elif case.count > 1 and (ours, one) in of_all:
                    figures[f"{ours}, 1 process"] = of_all[ours, one]
                    goals[f"{ours}, 1 process"] = 1 / MOST_TIME
                limits = [way for way in figures if way.startswith(f"{ours}, ")]
                rows.append(Row(name, ours, figures, goals=goals, limits=limits, remarks=remarks))
                share = [each.delivered_bytes / NEEDED_BYTES for each in found[ours]]
                what = f"{name}, bytes from the store for one of the file"
                rows.append(Row(what, ours, {ours: share}, "", goals={ours: MOST_BYTES}))
    return rows


def told(loads: list[Together]) -> str:
    """Returns the counts of the mount and the processor time of the loads in one way."""
    share = statistics.median(each.delivered_bytes for each in loads) / NEEDED_BYTES
    cpu_seconds = statistics.median(each.cpu_seconds for each in loads)
    return f"{share:.2f} of the bytes delivered, {cpu_seconds:.1f} s of processors"

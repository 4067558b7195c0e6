"""The benefit of each adaptive mechanism of streams and slices, compared with a fixed choice."""

import json
import statistics
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from cold import ROOT, evict, example, read_all
from fresh import USUAL_REQUEST_BYTES, Load, alternate, load_cold, load_slow
from harness import Row
from load_weights import used
from weight_files import written

sys.path.append(str(ROOT / "tests/python"))  # the tests mount the same file system
from support import real

TITLE = "streams and slices without one of their mechanisms"
SHARDS, SHAPE, ROUNDS = 4, (2048, 2048), 5
DELAY_MS = 10
# The number of read-ahead requests at a time: libfuse's default for a mount, and a larger one.
FEW_REQUESTS, MANY_REQUESTS = 12, 64
SLICED_BYTES = 256 << 20
RULE = "by what a request costs"


@dataclass(frozen=True)
class Case:
    """A checkpoint and its mount. None stands for the local disk."""

    gib: int
    ours: str
    without: list[str]
    background: int | None = None
    direct_io: bool = False


TRIAL = ["stream, pread"]
THREADS = ["stream, 4 threads", "stream, 64 threads"]
STREAMS = {
    f"trial, {FEW_REQUESTS} requests for read-ahead": Case(3, "stream", TRIAL, FEW_REQUESTS),
    f"trial, {MANY_REQUESTS} requests for read-ahead": Case(3, "stream", TRIAL, MANY_REQUESTS),
    "trial, local disk": Case(3, "stream", TRIAL),
    "more threads while storage is slow, cached": Case(1, "stream", THREADS, MANY_REQUESTS),
    "more threads while storage is slow, direct_io": Case(
        1, "stream", THREADS, MANY_REQUESTS, direct_io=True
    ),
    "more threads while storage is slow, local disk": Case(1, "stream", THREADS),
}
# The wanted bytes of a run, and the distance between the starts of two runs.
RUNS = {
    f"gaps, {run:,} bytes of each {step:,}, {delay_ms} ms per request": (run, step, delay_ms)
    for run, step in ((1024, 8192), (4096, 32_768))
    for delay_ms in (2, 10)
}
PACED_TENSORS, PACED_BYTES = 64, 4 << 20
PACE, NO_PACE = "at the pace of a lead", "as many reads as there are threads"
# The number of tensors used, the delay of a mount with direct_io, and its bandwidth if that is limited.
PACES = {
    "pace, the first 8 of 64 tensors, 2 ms and 100 MB/s": (8, 2, 100_000_000),
    "pace, 64 tensors, 2 ms and 100 MB/s": (64, 2, 100_000_000),
    "pace, 64 tensors, 2 ms per request": (64, 2, None),
    "pace, 64 tensors, 10 ms per request": (64, 10, None),
}
CASES = [*STREAMS, *RUNS, *PACES]


def measure(folder: Path, cases: list[str]) -> list[Row]:
    rows = []
    for gib in dict.fromkeys(case.gib for name, case in STREAMS.items() if name in cases):
        with tempfile.TemporaryDirectory(dir=folder) as inner:
            source = Path(inner) / "source"
            tensors = written(source, shards=SHARDS, tensors=gib * 32, shape=SHAPE)
            sums = {name: used(array) for name, array in tensors}
            for name, case in STREAMS.items():
                if name in cases and case.gib == gib:
                    rows.append(of_streams(name, case, source, sums))
    with tempfile.TemporaryDirectory(dir=folder) as inner:
        source = Path(inner) / "source"
        source.mkdir()
        (source / "bytes").write_bytes(bytes(range(251)) * (SLICED_BYTES // 251))
        rows += [of_gaps(name, source, *RUNS[name]) for name in cases if name in RUNS]
        (source / "bytes").write_bytes(bytes(range(256)) * (PACED_TENSORS * PACED_BYTES // 256))
        rows += [of_pace(name, source, *PACES[name]) for name in cases if name in PACES]
    return rows


def of_streams(name: str, case: Case, source: Path, sums: dict[str, int]) -> Row:
    needed_bytes = case.gib << 30
    if case.background is None:
        load = partial(load_cold, "load_weights.py", folder=source, sums=sums)
    else:
        load = partial(
            load_slow,
            "load_weights.py",
            source=source,
            sums=sums,
            needed_bytes=needed_bytes,
            delay_ms=DELAY_MS,
            direct_io=case.direct_io,
            background=case.background,
        )
    found = alternate([case.ours, *case.without], load, rounds=ROUNDS)
    figures = {way: [each.seconds for each in loads] for way, loads in found.items()}
    where = (
        f"{case.gib} GiB, cold" if case.background is None else f"{case.gib} GiB, {DELAY_MS} ms per request"
    )
    return Row(f"{name}, {where}", case.ours, figures, limits=case.without)


def of_gaps(name: str, source: Path, run: int, step: int, delay_ms: int) -> Row:
    """Slices with and without the rule, each on a mount without cached pages."""
    sums: set[int] = set()
    shares: dict[str, list[float]] = {}
    wanted_bytes = SLICED_BYTES // step * run
    reader, daemon = example("slice_reader"), example("slow_fuse")

    def measured(way: str) -> Load:
        evict(source / "bytes")
        with real.slow_fuse(source, source.with_name("slow"), delay_ms=delay_ms, program=daemon) as slow:
            command = [reader, str(slow.path / "bytes"), "--run", str(run), "--step", str(step)]
            command += ["--gap", "4096"] if way != RULE else ["--gap", "measured"]
            done = subprocess.run(command, check=True, capture_output=True, text=True)
        told = json.loads(done.stdout)
        sums.add(told["checksum"])
        shares.setdefault(way, []).append(slow.counts["read_bytes"] / wanted_bytes)
        return Load(told["seconds"], first_seconds=told["seconds"])

    without = "gaps below 4,096 bytes"
    found = alternate([RULE, without], measured, rounds=ROUNDS)
    if len(sums) != 1:
        message = f"{name}: not the same bytes"
        raise AssertionError(message)
    figures = {way: [each.seconds for each in loads] for way, loads in found.items()}
    remarks = {way: f"{statistics.median(share):.2f} of the needed bytes" for way, share in shares.items()}
    return Row(name, RULE, figures, limits=[without], remarks=remarks)


def of_pace(name: str, source: Path, used: int, delay_ms: int, bandwidth_bytes: int | None) -> Row:
    """Runs a lead with and without its pace, each on a mount without cached pages."""
    expected = used * PACED_BYTES // 256 * sum(range(256))
    reader, daemon = example("paced_reads"), example("slow_fuse")
    delivered: dict[str, list[float]] = {}

    def measured(way: str) -> Load:
        read_all(source)
        with real.slow_fuse(
            source,
            source.with_name("slow"),
            delay_ms=delay_ms,
            bandwidth_bytes=bandwidth_bytes,
            request_bytes=USUAL_REQUEST_BYTES,
            direct_io=True,
            program=daemon,
        ) as slow:
            command = [reader, str(slow.path / "bytes"), "--tensor", str(PACED_BYTES), "--used", str(used)]
            command += ["--paced", "1" if way == PACE else "0"]
            done = subprocess.run(command, check=True, capture_output=True, text=True)
        told = json.loads(done.stdout)
        if told["checksum"] != expected:
            message = f"{name}: {way}: not the same bytes"
            raise AssertionError(message)
        delivered.setdefault(way, []).append(slow.counts["read_bytes"] / 1e6)
        return Load(told["seconds"], first_seconds=told["seconds"])

    found = alternate([PACE, NO_PACE], measured, rounds=ROUNDS)
    figures = {way: [each.seconds for each in loads] for way, loads in found.items()}
    remarks = {way: f"{statistics.median(megabytes):.0f} MB" for way, megabytes in delivered.items()}
    return Row(name, PACE, figures, limits=[NO_PACE], remarks=remarks)

"""What each adaptive mechanism of streams and slices pays: with it, against a fixed choice."""

import contextlib
import json
import statistics
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from cold import ROOT, evict, example, read_ahead
from fresh import Load, alternate, load_cold, load_slow
from harness import Row
from load_weights import used
from weight_files import written

sys.path.append(str(ROOT / "tests/python"))  # the tests mount the same file system
from support import real

TITLE = "streams and slices without one of their mechanisms"
SHARDS, SHAPE, ROUNDS = 4, (2048, 2048), 5
DELAY_MS = 10
# libfuse's default for a mount: how many requests for read-ahead it gets at a time.
FEW_REQUESTS, MANY_REQUESTS = 12, 64
SLICED_BYTES = 256 << 20
RULE = "by what a request costs"


@dataclass(frozen=True)
class SlowMount:
    background: int
    direct_io: bool = False


@dataclass(frozen=True)
class LocalDisk:
    """The read-ahead to set, None for the disk's own."""

    read_ahead_kib: int | None = None


@dataclass(frozen=True)
class Case:
    """A checkpoint, and what it is on."""

    gib: int
    ours: str
    without: list[str]
    on: SlowMount | LocalDisk


READS = ["stream, pread"]
THREADS = ["stream, 4 threads", "stream, 64 threads"]
NARROW = ["safe_open, installed, ahead=False"]
STREAMS = {
    **{
        f"trial, {requests} requests for read-ahead": Case(3, "stream", READS, SlowMount(requests))
        for requests in (FEW_REQUESTS, MANY_REQUESTS)
    },
    "more threads while storage is slow, cached": Case(1, "stream", THREADS, SlowMount(MANY_REQUESTS)),
    "more threads while storage is slow, direct_io": Case(
        1, "stream", THREADS, SlowMount(MANY_REQUESTS, direct_io=True)
    ),
    **{
        f"wide page faults, {function}, {of_disk}": Case(1, ours, without, LocalDisk(read_ahead_kib))
        for read_ahead_kib, of_disk in ((None, "the disk's own read-ahead"), (128, "read-ahead 128 KiB"))
        for function, ours, without in (
            ("stream", "stream", READS),
            ("safe_open", "safe_open, installed", NARROW),
        )
    },
}
# Wanted bytes, and those from the beginning of one run to that of the next.
RUNS = {
    f"gaps, {run:,} bytes of each {step:,}, {delay_ms} ms a request": (run, step, delay_ms)
    for run, step in ((1024, 8192), (4096, 32_768))
    for delay_ms in (2, 10)
}
CASES = [*STREAMS, *RUNS]


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
    return rows


def of_streams(name: str, case: Case, source: Path, sums: dict[str, int]) -> Row:
    found: dict[str, list[Load]] = {}
    if isinstance(case.on, LocalDisk):
        where = "cold"
        load = partial(load_cold, "load_weights.py", folder=source, sums=sums)
        kib = case.on.read_ahead_kib
        with read_ahead(source, kib) if kib else contextlib.nullcontext(kib) as found_kib:
            if found_kib != kib:
                message = f"the read-ahead of the disk stays at {found_kib} KiB: this process may not set it"
                raise PermissionError(message)
            found = alternate([case.ours, *case.without], load, rounds=ROUNDS)
    else:
        where = f"{DELAY_MS} ms a request"
        load = partial(
            load_slow,
            "load_weights.py",
            source=source,
            sums=sums,
            needed_bytes=case.gib << 30,
            delay_ms=DELAY_MS,
            direct_io=case.on.direct_io,
            background=case.on.background,
        )
        found = alternate([case.ours, *case.without], load, rounds=ROUNDS)
    figures = {way: [each.seconds for each in loads] for way, loads in found.items()}
    return Row(f"{name}, {case.gib} GiB, {where}", case.ours, figures, limits=case.without)


def of_gaps(name: str, source: Path, run: int, step: int, delay_ms: int) -> Row:
    """Slices with and without the rule, each on a mount that has nothing cached."""
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

"""The benefit of each adaptive mechanism of the loader: all of them on, or all except one."""

import json
import random
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from cold import ROOT, example, token_file
from harness import Row

sys.path.append(str(ROOT / "tests/python"))  # the tests mount the same file system
from support import real

TITLE = "the loader without one of its mechanisms"
ALL = "all mechanisms"
# The mechanisms that the switches of `rust/ablation.rs` turn off.
MECHANISMS = {
    "helping": "without the consumer's hand",
    "extra_gatherers": "without extra gatherers",
    "adapting": "without doubling and starting anew",
    "trust": "without trust in a warm cache",
    "prefetch": "without prefetch hints",
    "small_chunks": "without small chunks while storage is slow",
}
ROUNDS = 9
WARM_BYTES = 256 << 20
COLD_BYTES = 4 << 30
SLOW_BYTES = 256 << 20
SHARE = 0.8  # of the cold rate, which a program that computes needs


def run(path: Path, case: str, without: str, **options: object) -> float:
    command = [example("ablation"), str(path), "--case", case, "--without", without]
    for name, value in options.items():
        command += [f"--{name.replace('_', '-')}", str(value)]
    done = subprocess.run(command, check=True, capture_output=True, text=True)
    return json.loads(done.stdout)["seconds"]


def compare_mechanisms(case: str, path: Path, kind: str, rounds: int = ROUNDS, **options: object) -> Row:
    """Alternates runs. Each run has its own process and its own seed."""
    chance = random.Random(time.time_ns())
    row = Row(case, ALL, {name: [] for name in (ALL, *MECHANISMS.values())})
    for _ in range(rounds):
        arms = [("nothing", ALL), *MECHANISMS.items()]
        for switch, name in chance.sample(arms, len(arms)):
            row.figures[name].append(run(path, kind, switch, seed=chance.getrandbits(60), **options))
    return row


def measure(folder: Path) -> list[Row]:
    warm = token_file(folder, WARM_BYTES)
    rows = [
        compare_mechanisms("warm batches, 64 x 1024", warm, "warm", batches=4000),
        compare_mechanisms("warm batches, 32 x 4096", warm, "warm", rows=32, length=4096, batches=2000),
        compare_mechanisms("warm batches, 4 x 64", warm, "warm", rows=4, length=64, batches=20_000),
        compare_mechanisms("first batch, cold", warm, "first", batches=2),
    ]
    warm.unlink()
    cold = token_file(folder, COLD_BYTES)
    rows.append(compare_mechanisms("cold windows of 2 KiB, 64 a batch", cold, "cold", batches=250))
    rows.append(
        compare_mechanisms("cold windows of 8 KiB, 64 a batch", cold, "cold", batches=150, length=4096)
    )
    step = rows[-2].median(ALL) / SHARE
    steps = {"batches": 400, "step_microseconds": int(step * 1e6)}
    rows.append(compare_mechanisms("99th percentile of next, cold", cold, "steps", **steps))
    cold.unlink()
    with tempfile.TemporaryDirectory(dir=folder) as inner:
        source = Path(inner, "source")
        behind = token_file(source, SLOW_BYTES)
        for delay_ms, threads in ((5, 64), (20, 1024)):
            program = example("slow_fuse")
            point = Path(inner, f"slow{delay_ms}")
            with real.slow_fuse(source, point, delay_ms=delay_ms, threads=threads, program=program) as mount:
                path, where = mount.path / behind.name, f"FUSE, {delay_ms} ms per request, {threads} at once"
                rows.append(
                    compare_mechanisms(f"{where}, read mode", path, "cold", 3, mode="read", batches=40)
                )
                rows.append(compare_mechanisms(f"{where}, mapped", path, "cold", 3, batches=100))
    return rows

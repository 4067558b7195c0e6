"""One tensor at a time from a file that is reopened for each, as in accelerate's offload."""

import json
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np
import safetensors.numpy
from cold import ROOT, example
from harness import Row

sys.path.append(str(ROOT / "tests/python"))  # the tests mount the same file system
from support import real

TITLE = "a file of 30,000 tensors, opened anew for each of 1,000"
TENSORS, ELEMENTS = 30_000, 64
ROUNDS = 5
OURS, STOCK = "pagestream", "safetensors"
# The tensors that a process reads: ours reads all, including the first open. A rival's opens are all alike.
COUNTS = {OURS: 1_000, STOCK: 20}
DELAY_MS = 10
# A header younger than this is not cached.
SETTLED_SECONDS = 4


def make(path: Path) -> list[float]:
    """Writes the file, and returns the sum of each tensor."""
    values = np.random.default_rng(0).standard_normal((TENSORS, ELEMENTS), "f4")
    names = [f"model.layers.{number // 10}.part.{number % 10}.weight" for number in range(TENSORS)]
    safetensors.numpy.save_file(dict(zip(names, values, strict=True)), path)
    return [float(row.sum(dtype=np.float64)) for row in values]


def seconds_per_tensor(way: str, framework: str, path: Path, sums: list[float]) -> float:
    """Reopens in a new process, which has no cached header yet."""
    program = Path(__file__).with_name("reopen_weights.py")
    count = COUNTS[way]
    command = [sys.executable, str(program), way, framework, str(path), str(count)]
    done = subprocess.run(command, check=False, capture_output=True, text=True)
    if done.returncode:
        message = f"{way}: {done.stderr[-2000:]}"
        raise RuntimeError(message)
    found = json.loads(done.stdout)
    if found["sums"] != sums[:count]:
        message = f"{way} gave other bytes"
        raise AssertionError(message)
    return float(found["seconds"]) / count


def of_place(case: str, path: Path, sums: list[float], rounds: int) -> list[Row]:
    rows = []
    for framework in ("np", "pt"):
        figures: dict[str, list[float]] = {name: [] for name in COUNTS}
        for _ in range(rounds):
            for way in COUNTS:
                figures[way].append(seconds_per_tensor(way, framework, path, sums))
        goals = {STOCK: 100.0 if case == "local" else 10.0}
        rows.append(Row(f"{case}, each tensor ({framework})", OURS, figures, goals=goals))
    return rows


def measure(folder: Path) -> list[Row]:
    with tempfile.TemporaryDirectory(dir=folder) as inner:
        source = Path(inner) / "source"
        source.mkdir()
        path = source / "model.safetensors"
        sums = make(path)
        time.sleep(SETTLED_SECONDS)
        rows = of_place("local", path, sums, ROUNDS)
        with real.slow_fuse(
            source, Path(inner) / "slow", delay_ms=DELAY_MS, program=example("slow_fuse")
        ) as slow:
            rows += of_place(f"FUSE, {DELAY_MS} ms per request", slow.path / path.name, sums, 2)
    return rows

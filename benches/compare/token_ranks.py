"""Ranks of one node that read a corpus from a slow mount: the bytes delivered for one epoch."""

import sys
import tempfile
from pathlib import Path

import numpy as np
from cold import ROOT, example, read_all
from fresh import USUAL_REQUEST_BYTES
from harness import Row

sys.path.append(str(ROOT / "tests/python"))  # the tests start ranks and mount the same file system
from support import real
from support.process import PROGRAMS
from support.together import begin, last_lines, processes

TITLE = "a corpus that 4 ranks of one node read once, in windows of 4 KiB, from a mount with 2 ms per request"
RANKS, DELAY_MS, ROUNDS = 4, 2, 3
WINDOW_TOKENS = 2048
MOST_BYTES = 1.05
# By default, a FUSE mount drops the pages of a file whenever it is opened.
MOUNTS: dict[str, dict[str, bool]] = {
    "pages kept": {"keep_cache": True},
    "pages dropped": {},
    "direct_io": {"direct_io": True},
}
CASES = {
    f"{size_mib} MiB, {order}, {mount}": (size_mib, order, mount)
    for size_mib in (128, 384)
    for mount in MOUNTS
    for order in ("shuffled", "sequential", "blocked")
}


def measure(folder: Path, cases: list[str]) -> list[Row]:
    rows = []
    with tempfile.TemporaryDirectory(dir=folder) as inner:
        for name in cases:
            size_mib, order, mount = CASES[name]
            source = Path(inner) / str(size_mib)
            if not source.exists():
                source.mkdir()
                tokens = np.random.default_rng(0).integers(0, 50_000, (size_mib << 19) + 1, dtype=np.uint16)
                tokens.tofile(source / "tokens.bin")
            found = [delivered(source, Path(inner) / "slow", order, MOUNTS[mount]) for _ in range(ROUNDS)]
            rows.append(Row(name, "pagestream", {"pagestream": found}, "", goals={"pagestream": MOST_BYTES}))
    return rows


def delivered(source: Path, point: Path, order: str, options: dict[str, bool]) -> float:
    """Returns the bytes delivered per byte of the corpus. All tokens must arrive once."""
    [path] = read_all(source)
    with real.slow_fuse(
        source,
        point,
        delay_ms=DELAY_MS,
        request_bytes=USUAL_REQUEST_BYTES,
        program=example("slow_fuse"),
        **options,
    ) as slow:
        program = PROGRAMS / "loader_processes/rank.py"
        arguments = [(slow.path / path.name, order, rank, RANKS) for rank in range(RANKS)]
        with processes(program, arguments) as ranks:
            begin(ranks)
            found = np.array([line.split() for line in last_lines(ranks)], dtype=np.int64)
    tokens = np.fromfile(path, np.uint16)[:-1]
    if found.sum(axis=0).tolist() != [len(tokens) // WINDOW_TOKENS, int(tokens.sum(dtype=np.int64))]:
        message = f"the ranks got other tokens: {found}"
        raise AssertionError(message)
    return float(slow.counts["read_bytes"]) / path.stat().st_size

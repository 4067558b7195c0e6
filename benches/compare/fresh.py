"""Loads in new processes, from cold files or slow mounts. The loaded bytes are verified."""

import json
import os
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from cold import ROOT, TOUCHED_BYTES, example, read_all
from harness import in_turn

sys.path.append(str(ROOT / "tests/python"))  # the tests mount the same file system
from support import real

# A load that takes this long skips every second round. Twice as long, and it skips two rounds in three.
SLOW_SECONDS = 10.0
# The largest read that arrives at a mount, if its daemon does not ask the kernel for more.
USUAL_REQUEST_BYTES = 128 << 10


@dataclass
class Load:
    """The costs of a load. A slow mount has counted the last two."""

    seconds: float
    first_seconds: float
    delivered_bytes: int = 0
    most_in_flight: int = 0


def load(program: str, arguments: list[str], sums: dict[str, int], *, touched_bytes: int = 0) -> Load:
    """Runs a program from this folder, and compares its sums by name.

    The program writes to `touched_bytes` of memory, and frees it, before the clock starts.
    """
    path = Path(__file__).with_name(program)
    command = [sys.executable, str(path), *arguments]
    environment = os.environ | {TOUCHED_BYTES: str(touched_bytes)}
    done = subprocess.run(command, check=False, capture_output=True, text=True, env=environment)
    if done.returncode:
        message = f"{program} {' '.join(arguments)}: {done.stderr[-2000:]}"
        raise RuntimeError(message)
    found = json.loads(done.stdout.splitlines()[-1])
    if found["sums"] != sums:
        message = f"{program} {' '.join(arguments)} gave other bytes"
        raise AssertionError(message)
    return Load(found["seconds"], found["first_seconds"])


def load_cold(program: str, way: str, folder: Path, sums: dict[str, int]) -> Load:
    """Loads files that the program first evicts from the page cache."""
    return load(program, [way, str(folder), "--evict"], sums)


def load_slow(
    program: str,
    way: str,
    source: Path,
    sums: dict[str, int],
    *more: str,
    needed_bytes: int,
    delay_ms: int,
    direct_io: bool,
    background: int | None = None,
    request_bytes: int = USUAL_REQUEST_BYTES,
    bandwidth_bytes: int | None = None,
) -> Load:
    """Loads from a new mount of `source`, which therefore has no cached pages.

    `source` itself is read first, so that a request takes the delay and not the time of this machine's disk.
    `request_bytes` is the largest request and the kernel's read-ahead. `bandwidth_bytes` is the limit for all
    requests together in a second. The mount must have delivered at least `needed_bytes`.
    """
    read_all(source)
    point = source.with_name(f"{source.name}-slow")
    with real.slow_fuse(
        source,
        point,
        delay_ms=delay_ms,
        request_bytes=request_bytes,
        read_ahead_bytes=request_bytes,
        direct_io=direct_io,
        background=background,
        bandwidth_bytes=bandwidth_bytes,
        program=example("slow_fuse"),
    ) as slow:
        # The page cache has the bytes once, and programs have them up to twice.
        found = load(program, [way, str(slow.path), *more], sums, touched_bytes=3 * needed_bytes)
    found.delivered_bytes = slow.counts["read_bytes"]
    found.most_in_flight = slow.counts["most_in_flight"]
    if found.delivered_bytes < needed_bytes:
        message = (
            f"{way}: the mount delivered {found.delivered_bytes} of {needed_bytes} bytes: it was not cold"
        )
        raise AssertionError(message)
    return found


def alternate(names: list[str], measure: Callable[[str], Load], *, rounds: int) -> dict[str, list[Load]]:
    """Measures all ways in a changing order, slow ones less often than in each round."""
    found: dict[str, list[Load]] = {name: [] for name in names}
    for turn in range(rounds):
        for name in in_turn(names, turn):
            pause = int(found[name][0].seconds / SLOW_SECONDS) if turn else 0
            if turn % (pause + 1) == 0:
                found[name].append(measure(name))
    return found

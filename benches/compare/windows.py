"""Random windows of a cold file: one consumer, np.memmap, Grain, LitData and a deep direct reader."""

import mmap
import random
import resource
import statistics
import time
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import numpy as np
from cold import (
    device_bytes,
    direct_reader,
    evict,
    prove,
    read_ahead,
    read_ahead_kb,
    token_file,
)
from harness import Row
from readers import (
    BATCH,
    LITDATA_CHUNK_BYTES,
    LitDataWindows,
    Way,
    by_grain,
    map_per_batch,
    map_random,
    own,
    starts_of,
)

TITLE = "random windows of a cold file of 10 GiB"
ROUNDS = 3
# The windows of a pass. Ways that read far too much get few windows, so that the file stays cold for them.
MANY, FEW = 16_384, 128
DIRECT = "O_DIRECT, depth 64"
LITDATA = "LitData (windows of one chunk, shuffled)"
GOALS = {
    "np.memmap, new for each batch": 10,
    "np.memmap, MADV_RANDOM": 5,
    "Grain, 16 threads over np.memmap": 1,
    "Grain, the same with MADV_RANDOM": 1,
    LITDATA: 1,
    DIRECT: 0.9,
}


@dataclass
class Pass:
    """The costs of one pass over windows."""

    windows_per_second: float
    read_per_byte_used: float
    major_faults: float


def one_pass(way: Way, path: Path, tokens: int, count: int, seed: int) -> Pass:
    """Reads `count` windows from a cold file, and proves the result once the clock has stopped."""
    evict(path)
    rows = np.ones((count, tokens), "u2")  # touched in advance, so that none of its own faults is timed
    bytes_before, faults_before = device_bytes(), resource.getrusage(resource.RUSAGE_SELF).ru_majflt
    seconds, starts = way(path, seed, rows)
    faults = resource.getrusage(resource.RUSAGE_SELF).ru_majflt - faults_before
    read = (device_bytes() - bytes_before) / rows.nbytes
    prove(path, starts, rows)
    return Pass(count / seconds, read, faults)


def direct_pass(path: Path, tokens: int, count: int, seed: int) -> Pass:
    rows = np.broadcast_to(np.zeros((), "u2"), (count, tokens))
    found = direct_reader(path, tokens, starts_of(path, seed, rows), engine="uring")
    read = found["device_bytes"] / rows.nbytes
    return Pass(found["windows_per_second"], read, found["major_faults"])


def passes(path: Path, tokens: int) -> dict[str, list[Pass]]:
    """Runs all ways in a changing order.

    Each pass has its own windows, because caches below the kernel (of the disk or the host) would serve the
    second reader of a place.
    """
    litdata = LitDataWindows(path, tokens)
    ways: dict[str, tuple[Way, int]] = {
        "TokenLoader": (own, MANY),
        "TokenLoader, raw uint16": (partial(own, dtype="raw"), MANY),
        'TokenLoader, order="blocked"': (partial(own, order="blocked"), MANY),
        "np.memmap, new for each batch": (map_per_batch, FEW),
        "np.memmap, MADV_RANDOM": (map_random, MANY // 8),
        "Grain, 16 threads over np.memmap": (by_grain, FEW),
        "Grain, the same with MADV_RANDOM": (partial(by_grain, advice=mmap.MADV_RANDOM), MANY // 4),
        LITDATA: (litdata, LITDATA_CHUNK_BYTES // (tokens * 2) // BATCH * BATCH),
    }
    found: dict[str, list[Pass]] = {name: [] for name in (*ways, DIRECT)}
    chance = random.Random(time.time_ns())
    for _ in range(ROUNDS):
        for name in chance.sample(list(found), len(found)):
            seed = chance.getrandbits(60)
            if name == DIRECT:
                found[name].append(direct_pass(path, tokens, MANY, seed))
            else:
                way, count = ways[name]
                found[name].append(one_pass(way, path, tokens, count, seed))
    litdata.remove()
    return found


def rows_of(case: str, found: dict[str, list[Pass]]) -> list[Row]:
    """Compares our loaders with all rivals, and the blocked order only with LitData, whose order is
    similar."""
    rates = {name: [one.windows_per_second for one in them] for name, them in found.items()}
    remarks = {}
    for name, them in found.items():
        read = statistics.median(one.read_per_byte_used for one in them)
        faults = statistics.median(one.major_faults for one in them)
        remarks[name] = f"{read:.1f} bytes read per byte used, {faults:,.0f} major faults"
    rows = []
    for name in list(found)[:3]:
        rivals = [LITDATA] if "blocked" in name else list(GOALS)
        figures = {contestant: rates[contestant] for contestant in (name, *rivals)}
        goals = {rival: GOALS[rival] for rival in rivals}
        rows.append(Row(case, name, figures, "windows/s", True, goals, [DIRECT], remarks))
    return rows


def measure(folder: Path) -> list[Row]:
    path = token_file(folder)
    rows = []
    for wanted in dict.fromkeys((read_ahead_kb(path) or 0, 128)):
        with read_ahead(path, wanted) as kib:
            for tokens in (1025, 4097):
                case = f"{tokens * 2} bytes, read-ahead {kib} KiB"
                rows += rows_of(case, passes(path, tokens))
    return rows

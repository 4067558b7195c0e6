"""Random windows in `read` mode on FUSE mounts, compared with np.memmap and DataLoader where these work."""

import contextlib
import random
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import numpy as np
from cold import ROOT, direct_reader, evict, example, prove, token_file
from harness import Row
from readers import Way, by_data_loader, map_per_batch, map_random, own, starts_of

sys.path.append(str(ROOT / "tests/python"))  # the tests mount the same file systems
from support import real

TITLE = "random windows of a cold file of 1 GiB on FUSE mounts"
FILE_BYTES = 1 << 30
ROUNDS = 3
# The windows of a pass, for ours and for the rivals.
MANY, FEW = 8192, 512
OURS = 'TokenLoader, mmap_mode="read"'
LIMIT = "64 threads with pread"


@contextlib.contextmanager
def bindfs(source: Path, folder: Path, *options: str) -> Iterator[Path]:
    point = folder / f"bindfs{len(options)}"
    with real.bindfs(source, point, "direct_io", *options) as mount:
        yield mount


def threaded(source: Path, folder: Path) -> contextlib.AbstractContextManager[Path]:
    return bindfs(source, folder, "multithreaded")


@contextlib.contextmanager
def slow(source: Path, folder: Path) -> Iterator[Path]:
    with real.slow_fuse(source, folder / "slow", delay_ms=1, program=example("slow_fuse")) as mount:
        yield mount.path


# direct_io refuses shared mappings, which mode="r" makes. By default, bindfs serves one request at a time, so
# that no reader can be much faster than another.
MOUNTS: dict[str, tuple[Callable[[Path, Path], contextlib.AbstractContextManager[Path]], str]] = {
    "bindfs -o direct_io": (bindfs, "c"),
    "bindfs -o direct_io,multithreaded": (threaded, "c"),
    "FUSE, 1 ms per request": (slow, "r"),
}


def ways(mode: str) -> dict[str, tuple[Way, int]]:
    word = f'np.memmap(mode="{mode}")'
    return {
        OURS: (partial(own, mmap_mode="read"), MANY),
        "TokenLoader, mapped": (own, MANY),
        f"{word}, new for each batch": (partial(map_per_batch, mode=mode), FEW),
        f"{word}, MADV_RANDOM": (partial(map_random, mode=mode), FEW),
        f"DataLoader, 2 workers over {word}": (partial(by_data_loader, mode=mode), FEW),
        LIMIT: (by_threads, MANY),
    }


def by_threads(path: Path, seed: int, rows: np.ndarray) -> tuple[float, np.ndarray]:
    """Measures the limit of the mount: threads read the windows at the same time, only for a checksum."""
    starts = starts_of(path, seed, rows)
    seconds = direct_reader(path, rows.shape[1], starts, engine="pread")["seconds"]
    return seconds, starts


def windows_per_second(way: Way, path: Path, source: Path, tokens: int, count: int, seed: int) -> float:
    """Makes one pass, cold on both sides of the mount. The file behind the mount proves the result."""
    evict(path)
    evict(source)
    rows = np.ones((count, tokens), "u2")
    seconds, starts = way(path, seed, rows)
    if way is not by_threads:
        prove(source, starts, rows)
    return count / seconds


def measure(folder: Path) -> list[Row]:
    rows = []
    with tempfile.TemporaryDirectory(dir=folder) as inner:
        source = Path(inner, "source")
        behind = token_file(source, FILE_BYTES)
        for name, (mounted, mode) in MOUNTS.items():
            with mounted(source, Path(inner)) as mount:
                for tokens in (1025, 4097):
                    case = f"{name}, {tokens * 2} bytes"
                    rows += measure_mount(case, mount / behind.name, behind, tokens, ways(mode))
    return rows


def measure_mount(
    case: str, path: Path, behind: Path, tokens: int, contestants: dict[str, tuple[Way, int]]
) -> list[Row]:
    """Returns a row for `read` against all rivals, and one for the mapping that "auto" chooses."""
    chance = random.Random(time.time_ns())
    rates: dict[str, list[float]] = {name: [] for name in contestants}
    for _ in range(ROUNDS):
        for name in chance.sample(list(contestants), len(contestants)):
            way, count = contestants[name]
            seed = chance.getrandbits(60)
            rates[name].append(windows_per_second(way, path, behind, tokens, count, seed))
    ours, mapped, *rivals = contestants
    figures = {name: rates[name] for name in (ours, *rivals)}
    goals = dict.fromkeys(rivals[:-1], 10)
    rows = [Row(case, ours, figures, "windows/s", more_is_better=True, goals=goals, limits=[LIMIT])]
    # For information: the mode that "auto" chooses on these mounts, and their limit.
    figures = {name: rates[name] for name in (mapped, LIMIT)}
    return [*rows, Row(case, mapped, figures, "windows/s", more_is_better=True, limits=[LIMIT])]

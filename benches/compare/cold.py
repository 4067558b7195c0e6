"""Files that are cold: made once, dropped from the page cache without root, and proven to be gone from it.

As a program, random windows of a cold file in the ways that people read them, beside a deep-queue direct
reader: `python benches/compare/cold.py --folder DIR [--gib 8] [--read-ahead-kb 128 8192]`.
"""

import argparse
import contextlib
import json
import mmap
import os
import random
import resource
import statistics
import subprocess
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from pagestream import MappedFile

ROOT = Path(__file__).parents[2]
BLOCK_BYTES = 64 << 20
WARM_LIMIT = 0.01


def token_file(folder: Path, size_bytes: int) -> Path:
    """A file of random uint16 tokens, made if the folder has none of that size. Who asks removes it."""
    path = folder / f"tokens-{size_bytes}.bin"
    if path.exists() and path.stat().st_size == size_bytes:
        return path
    folder.mkdir(parents=True, exist_ok=True)
    generator = np.random.default_rng(0)
    partial = path.with_suffix(".partial")
    with partial.open("wb") as file:
        for start in range(0, size_bytes, BLOCK_BYTES):
            file.write(generator.bytes(min(BLOCK_BYTES, size_bytes - start)))
        file.flush()
        os.fsync(file.fileno())
    partial.rename(path)
    return path


def evict(path: Path) -> float:
    """Drops the file from the page cache and returns the fraction that is left, which is next to nothing.

    Needs no root: the pages are clean after fdatasync, and nobody may have them mapped.
    """
    with MappedFile(path) as file:
        file.evict()
        left = file.residency().fraction
    if left >= WARM_LIMIT:
        message = f"{left:.1%} of {path} stays in the page cache; does another process map it?"
        raise RuntimeError(message)
    return left


def read_ahead_control(path: Path) -> Path | None:
    """The file in sysfs with the read-ahead of the disk that `path` is on; None where it has none."""
    device = os.stat(path).st_dev
    disk = Path(f"/sys/dev/block/{os.major(device)}:{os.minor(device)}").resolve()
    places = (disk / "queue/read_ahead_kb", disk.parent / "queue/read_ahead_kb")
    return next((place for place in places if place.exists()), None)


def read_ahead_kb(path: Path) -> int | None:
    control = read_ahead_control(path)
    return None if control is None else int(control.read_text())


@contextlib.contextmanager
def read_ahead(path: Path, kib: int) -> Iterator[int | None]:
    """Sets the disk's read-ahead, where this process may, and puts back what was there.

    Yields what is in force, which is not `kib` where it could not be set.
    """
    control = read_ahead_control(path)
    before = read_ahead_kb(path)
    if control is None or not os.access(control, os.W_OK):
        yield before
        return
    control.write_text(str(kib))
    try:
        yield read_ahead_kb(path)
    finally:
        control.write_text(str(before))


def direct_reader() -> list[str]:
    """The command of the deep-queue reader, built if need be."""
    command = ["cargo", "build", "--release", "--quiet", "--example", "direct_reader"]
    subprocess.run(command, cwd=ROOT, check=True)
    target = Path(os.environ.get("CARGO_TARGET_DIR", ROOT / "target"))
    return [str(target / "release/examples/direct_reader")]


@dataclass
class Cost:
    """What one pass over the windows took."""

    windows_per_second: float
    device_bytes: int
    major_faults: int
    checksum: int


def device_bytes() -> int:
    lines = Path("/proc/self/io").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("read_bytes"))


def checksum(rows: np.ndarray) -> int:
    """As `direct_reader` has it: each byte times one more than its place in its window, modulo 2^64."""
    windows = rows.view("u1").astype("u8")
    places = np.arange(1, windows.shape[1] + 1, dtype="u8")
    return int((windows * places).sum(dtype="u8"))


def map_per_batch(path: Path, starts: np.ndarray, tokens: int, rows: np.ndarray) -> None:
    """The nanoGPT way: a new np.memmap for each batch."""
    for first in range(0, len(starts), 64):
        data = np.memmap(path, dtype="u2", mode="r")
        for row, start in enumerate(starts[first : first + 64], first):
            rows[row] = data[start : start + tokens]


def map_random(path: Path, starts: np.ndarray, tokens: int, rows: np.ndarray) -> None:
    """One np.memmap with MADV_RANDOM."""
    data = np.memmap(path, dtype="u2", mode="r")
    data.base.madvise(mmap.MADV_RANDOM)
    for row, start in enumerate(starts):
        rows[row] = data[start : start + tokens]


def map_random_ahead(windows_ahead: int) -> Callable[[Path, np.ndarray, int, np.ndarray], None]:
    """The same with MADV_WILLNEED on the pages of the window that comes `windows_ahead` later."""

    def read(path: Path, starts: np.ndarray, tokens: int, rows: np.ndarray) -> None:
        data = np.memmap(path, dtype="u2", mode="r")
        mapping = data.base
        mapping.madvise(mmap.MADV_RANDOM)
        offsets = starts * 2
        first = offsets // mmap.PAGESIZE * mmap.PAGESIZE
        lengths = offsets + tokens * 2 - first
        pages = list(zip(first.tolist(), lengths.tolist(), strict=True))
        for start, length in pages[:windows_ahead]:
            mapping.madvise(mmap.MADV_WILLNEED, start, length)
        for row, start in enumerate(starts):
            if row + windows_ahead < len(pages):
                mapping.madvise(mmap.MADV_WILLNEED, *pages[row + windows_ahead])
            rows[row] = data[start : start + tokens]

    return read


WAYS: dict[str, Callable[[Path, np.ndarray, int, np.ndarray], None]] = {
    "np.memmap, new for each batch": map_per_batch,
    "np.memmap, MADV_RANDOM": map_random,
    "the same, MADV_WILLNEED 64 ahead": map_random_ahead(64),
    "the same, MADV_WILLNEED 256 ahead": map_random_ahead(256),
}


def run_way(name: str, path: Path, tokens: int, count: int, seed: int) -> Cost:
    """One pass from a cold file; the windows' bytes are summed after the clock has stopped."""
    evict(path)
    places = path.stat().st_size // 2 - tokens + 1
    starts = np.random.default_rng(seed).integers(0, places, count)
    rows = np.zeros((count, tokens), "u2")  # touched, so that no fault of its own is timed
    rows.fill(1)
    bytes_before, faults_before = device_bytes(), resource.getrusage(resource.RUSAGE_SELF).ru_majflt
    begin = time.perf_counter()
    WAYS[name](path, starts, tokens, rows)
    seconds = time.perf_counter() - begin
    faults = resource.getrusage(resource.RUSAGE_SELF).ru_majflt - faults_before
    return Cost(count / seconds, device_bytes() - bytes_before, faults, checksum(rows))


def run_direct(
    command: list[str], path: Path, tokens: int, count: int, seed: int, folder: Path, *, engine: str
) -> Cost:
    """The windows of `run_way` with the same seed, by the reader."""
    places = path.stat().st_size // 2 - tokens + 1
    offsets = folder / f"offsets-{os.getpid()}"
    (np.random.default_rng(seed).integers(0, places, count) * 2).astype("<u8").tofile(offsets)
    options = [
        "--window-bytes",
        str(tokens * 2),
        "--offsets",
        str(offsets),
        "--engine",
        engine,
        "--evict",
        "1",
    ]
    try:
        done = subprocess.run([*command, str(path), *options], check=True, capture_output=True, text=True)
    finally:
        offsets.unlink()
    found = json.loads(done.stdout)
    return Cost(found["windows_per_second"], found["device_bytes"], found["major_faults"], found["checksum"])


def compare(path: Path, tokens: int, *, count: int, rounds: int) -> dict[str, list[Cost]]:
    """All ways in turn, in an order that changes.

    Each pass has windows of its own: the second reader of a place would find it in a cache below us (of the
    disk, of the host). Right after a pass the direct reader reads the same windows once more, untimed, and
    its sum must be the same.
    """
    command = direct_reader()
    engines = {f"O_DIRECT, depth 64, {engine}": engine for engine in ("uring", "threads")}
    found: dict[str, list[Cost]] = {name: [] for name in (*engines, *WAYS)}
    chance = random.Random(time.time_ns())
    for _ in range(rounds):
        names = list(found)
        chance.shuffle(names)
        for name in names:
            seed = chance.getrandbits(60)
            arguments = (path, tokens, count, seed)
            if name in engines:
                cost = run_direct(command, *arguments, path.parent, engine=engines[name])
            else:
                cost = run_way(name, *arguments)
                proof = run_direct(command, *arguments, path.parent, engine="threads")
                if cost.checksum != proof.checksum:
                    message = f"{name}: the windows' bytes are not those of the file (seed {seed})"
                    raise AssertionError(message)
            found[name].append(cost)
    return found


def show(found: dict[str, list[Cost]], title: str, useful_bytes: int) -> str:
    rates = {name: [cost.windows_per_second for cost in costs] for name, costs in found.items()}
    best = max(statistics.median(rate) for name, rate in rates.items() if name.startswith("O_DIRECT"))
    lines = [
        f"### {title}",
        "",
        "| way | windows/s (span) | of the direct reader | read per byte used | faults |",
    ]
    lines.append("|---|---|---|---|---|")
    for name, costs in found.items():
        median = statistics.median(rates[name])
        read = statistics.median(cost.device_bytes for cost in costs) / useful_bytes
        faults = statistics.median(cost.major_faults for cost in costs)
        span = f"{min(rates[name]):,.0f} to {max(rates[name]):,.0f}"
        lines.append(
            f"| {name} | {median:,.0f} ({span}) | {median / best:.3f} | {read:.1f} | {faults:,.0f} |"
        )
    return "\n".join(lines) + "\n"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--folder", type=Path, required=True, help="on the disk that is measured")
    parser.add_argument("--gib", type=float, default=8)
    parser.add_argument("--count", type=int, default=2000, help="windows a pass")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--read-ahead-kb", type=int, nargs="*", default=[], help="needs root to be set")
    parser.add_argument("--keep", action="store_true", help="do not remove the file at the end")
    options = parser.parse_args()
    path = token_file(options.folder, int(options.gib * 2**30) // 2 * 2)
    try:
        for wanted in options.read_ahead_kb or [read_ahead_kb(path) or 0]:
            with read_ahead(path, wanted) as kib:
                for tokens in (1025, 4097):
                    found = compare(path, tokens, count=options.count, rounds=options.rounds)
                    title = f"cold windows of {tokens * 2} bytes, read-ahead {kib} KiB"
                    print(show(found, title, options.count * tokens * 2), flush=True)
    finally:
        if not options.keep:
            path.unlink()


if __name__ == "__main__":
    main()

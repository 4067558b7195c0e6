"""Files that are cold: made once, dropped from the page cache without root, and proven to be gone from it."""

import contextlib
import functools
import json
import mmap
import os
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from pagestream import MappedFile

ROOT = Path(__file__).parents[2]
FILE_BYTES = 10 << 30
WRITTEN_BYTES = 64 << 20
BLOCK_BYTES = 1 << 20
WARM_LIMIT = 0.01
# The environment variable by which `touch_memory` is told how much.
TOUCHED_BYTES = "TOUCHED_BYTES"


def token_file(folder: Path, size_bytes: int = FILE_BYTES) -> Path:
    """A file of random uint16 tokens, made if the folder has none of that size. The caller removes it."""
    path = folder / f"tokens-{size_bytes}.bin"
    if path.exists() and path.stat().st_size == size_bytes:
        return path
    folder.mkdir(parents=True, exist_ok=True)
    generator = np.random.default_rng(0)
    partial = path.with_suffix(".partial")
    with partial.open("wb") as file:
        for start in range(0, size_bytes, WRITTEN_BYTES):
            file.write(generator.bytes(min(WRITTEN_BYTES, size_bytes - start)))
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


def read_all(folder: Path) -> list[Path]:
    """Reads all files of the folder into the page cache, and returns them."""
    buffer = bytearray(BLOCK_BYTES)
    paths = [path for path in folder.iterdir() if path.is_file()]
    for path in paths:
        with path.open("rb", buffering=0) as file:
            while file.readinto(buffer):
                pass
    return paths


def touch_memory() -> None:
    """Writes to each page of as much memory as the environment says, and frees it.

    A virtual machine gives free memory back to its host. Fetching it again would take longer than a load, and
    count against the loads that happen to need it.
    """
    nbytes = int(os.environ.get(TOUCHED_BYTES, "0"))
    if nbytes:
        with mmap.mmap(-1, nbytes) as memory:
            np.frombuffer(memory, np.uint8)[:: mmap.PAGESIZE] = 1


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


@functools.cache
def example(name: str) -> str:
    """A program of the Rust side, built if need be."""
    command = ["cargo", "build", "--release", "--quiet", "--example", name]
    subprocess.run(command, cwd=ROOT, check=True)
    target = Path(os.environ.get("CARGO_TARGET_DIR", ROOT / "target"))
    return str(target / "release/examples" / name)


def direct_reader(path: Path, tokens: int, starts: np.ndarray, *, engine: str) -> dict[str, float]:
    """What `rust/direct_reader.rs` says of one pass over the windows that begin at the tokens `starts`.

    The file is evicted before, unless the engine reads through the page cache, which proves what is there.
    """
    evicted = "0" if engine == "pread" else "1"
    return run_direct_reader(path, tokens * 2, starts * 2, "--engine", engine, "--evict", evicted)


def sequential_seconds(path: Path) -> float:
    """What the disk needs for all of the file in order, past the page cache, 16 blocks of 1 MiB at a time.

    Evicts the file first, and does not look at the bytes.
    """
    size_bytes = path.stat().st_size
    starts = np.arange(0, size_bytes, BLOCK_BYTES)
    # The last block overlaps the one before.
    starts = np.minimum(starts, size_bytes - BLOCK_BYTES)
    options = ("--engine", "uring", "--depth", "16", "--evict", "1", "--checksum", "0")
    return run_direct_reader(path, BLOCK_BYTES, starts, *options)["seconds"]


def run_direct_reader(path: Path, window_bytes: int, starts: np.ndarray, *options: str) -> dict[str, float]:
    with tempfile.NamedTemporaryFile() as offsets:
        starts.astype("<u8").tofile(offsets.name)
        command = [example("direct_reader"), str(path), "--window-bytes", str(window_bytes)]
        command += ["--offsets", offsets.name, *options]
        done = subprocess.run(command, check=True, capture_output=True, text=True)
    return json.loads(done.stdout)


def device_bytes() -> int:
    """What this process had read from disks so far."""
    lines = Path("/proc/self/io").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("read_bytes"))


def checksum(rows: np.ndarray) -> int:
    """As `direct_reader` has it: each byte times one more than its place in its window, modulo 2^64."""
    places = np.arange(1, rows.shape[1] * 2 + 1, dtype="u8")
    parts = np.array_split(rows, max(1, len(rows) // 256))
    return sum(int((part.view("u1").astype("u8") * places).sum(dtype="u8")) for part in parts) % 2**64


def prove(path: Path, starts: np.ndarray, rows: np.ndarray) -> None:
    """That `rows` are the windows of the file that begin at `starts`, in whatever order."""
    expected = direct_reader(path, rows.shape[1], starts, engine="pread")["checksum"]
    if len(starts) != len(rows) or checksum(rows) != expected:
        message = f"{len(rows)} windows of {rows.shape[1]} tokens are not those of {path}"
        raise AssertionError(message)

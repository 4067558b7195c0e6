"""Cold files: created once, dropped from the page cache without root, and proven to be absent from it."""

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
# This environment variable tells `touch_memory` the number of bytes.
TOUCHED_BYTES = "TOUCHED_BYTES"


def token_file(folder: Path, size_bytes: int = FILE_BYTES) -> Path:
    """Returns a file of random uint16 tokens, and creates it if missing. The caller removes it."""
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
    """Drops the file from the page cache and returns the remaining fraction, which is close to zero.

    This needs no root: after fdatasync the pages are clean, and no process may have them mapped.
    """
    with MappedFile(path) as file:
        file.evict()
        left = file.residency().fraction
    if left >= WARM_LIMIT:
        message = f"{left:.1%} of {path} stays in the page cache; does another process map it?"
        raise RuntimeError(message)
    return left


def read_all(folder: Path) -> list[Path]:
    """Reads all files of the folder into the page cache, and returns the files."""
    buffer = bytearray(BLOCK_BYTES)
    paths = [path for path in folder.iterdir() if path.is_file()]
    for path in paths:
        with path.open("rb", buffering=0) as file:
            while file.readinto(buffer):
                pass
    return paths


def touch_memory() -> None:
    """Writes to each page of as much memory as the environment variable says, and frees it.

    A virtual machine returns free memory to its host. Getting it back would take longer than a load, and
    would count against the loads that happen to need it.
    """
    nbytes = int(os.environ.get(TOUCHED_BYTES, "0"))
    if nbytes:
        with mmap.mmap(-1, nbytes) as memory:
            np.frombuffer(memory, np.uint8)[:: mmap.PAGESIZE] = 1


def read_ahead_control(path: Path) -> Path | None:
    """Returns the sysfs file with the read-ahead of the disk of `path`, or None if there is none."""
    device = os.stat(path).st_dev
    disk = Path(f"/sys/dev/block/{os.major(device)}:{os.minor(device)}").resolve()
    places = (disk / "queue/read_ahead_kb", disk.parent / "queue/read_ahead_kb")
    return next((place for place in places if place.exists()), None)


def read_ahead_kb(path: Path) -> int | None:
    control = read_ahead_control(path)
    return None if control is None else int(control.read_text())


@contextlib.contextmanager
def read_ahead(path: Path, kib: int) -> Iterator[int | None]:
    """Sets the read-ahead of the disk if this process may, and restores it afterwards.

    Yields the value in force, which differs from `kib` if it could not be set.
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
    """Returns an example program of the Rust side, and builds it if necessary."""
    command = ["cargo", "build", "--release", "--quiet", "--example", name]
    subprocess.run(command, cwd=ROOT, check=True)
    target = Path(os.environ.get("CARGO_TARGET_DIR", ROOT / "target"))
    return str(target / "release/examples" / name)


def direct_reader(path: Path, tokens: int, starts: np.ndarray, *, engine: str) -> dict[str, float]:
    """Returns the result of `rust/direct_reader.rs` for one pass over windows. `starts` are their first
    tokens.

    The file is evicted first, unless the engine reads through the page cache to prove its content.
    """
    evicted = "0" if engine == "pread" else "1"
    return run_direct_reader(path, tokens * 2, starts * 2, "--engine", engine, "--evict", evicted)


def sequential_seconds(path: Path) -> float:
    """Returns how long the disk takes for the whole file in order, past the page cache, 16 blocks of 1 MiB at
    a time.

    Evicts the file first, and does not check the bytes.
    """
    size_bytes = path.stat().st_size
    starts = np.arange(0, size_bytes, BLOCK_BYTES)
    # The last block overlaps the previous one.
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
    """Returns the bytes that this process has read from disks so far."""
    lines = Path("/proc/self/io").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("read_bytes"))


def checksum(rows: np.ndarray) -> int:
    """Returns the checksum of `direct_reader`: the sum of bytes times (position in window + 1), modulo
    2^64."""
    places = np.arange(1, rows.shape[1] * 2 + 1, dtype="u8")
    parts = np.array_split(rows, max(1, len(rows) // 256))
    return sum(int((part.view("u1").astype("u8") * places).sum(dtype="u8")) for part in parts) % 2**64


def prove(path: Path, starts: np.ndarray, rows: np.ndarray) -> None:
    """Proves that `rows` are the windows of the file that begin at `starts`, in any order."""
    expected = direct_reader(path, rows.shape[1], starts, engine="pread")["checksum"]
    if len(starts) != len(rows) or checksum(rows) != expected:
        message = f"{len(rows)} windows of {rows.shape[1]} tokens are not those of {path}"
        raise AssertionError(message)

"""Parts of tensors: rows, columns and every other element, compared with `safetensors`."""

import gc
import json
import subprocess
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

import numpy as np
import safetensors
import safetensors.numpy
from cold import device_bytes, direct_reader, evict, example, read_ahead, read_ahead_kb
from harness import Row, compare, in_turn

from pagestream import MappedFile, open_checkpoint
from pagestream.safetensors import safe_open

TITLE = "slices of tensors"
ROUNDS = 5
PAGE_BYTES = 4096
READ_AHEAD_KIB = 128

# 1 GiB with an eighth of its columns wanted: 8 KiB out of every 64 KiB.
ROWS, COLUMNS = 16_384, 16_384
WANTED = np.s_[:, 6144:8192]
WANTED_BYTES = 8192
LIMIT = "the same pages by io_uring with O_DIRECT, 64 at a time, into nothing"


def make(path: Path, shape: tuple[int, int]) -> Path:
    array = np.random.default_rng(0).standard_normal(shape, "f4")
    safetensors.numpy.save_file({"weight": array}, path)
    return path


def part(opener: type, path: Path, index: object, **options: object) -> np.ndarray:
    """Opens a file and reads a part of it into memory."""
    with opener(path, "np", **options) as file:
        return file.get_slice("weight")[index]


def whole(path: Path, index: object) -> np.ndarray:
    with safetensors.safe_open(path, "np") as file:
        return file.get_tensor("weight")[index].copy()


def by_torch(path: Path, index: object) -> np.ndarray:
    with safetensors.safe_open(path, "pt") as file:
        return file.get_slice("weight")[index].contiguous().numpy()


def warm(folder: Path) -> list[Row]:
    """Measures system calls and copies, because the page cache has the whole file."""
    path = make(folder / "64.safetensors", (8192, 2048))
    cases = {
        "10 rows of a 64 MiB tensor, pread (np)": (np.s_[100:110], {"backend": "pread"}, 100),
        "[:, ::2] of 8192 x 2048 f32 (np)": (np.s_[:, ::2], {}, 5),
        "[:, ::2] of 8192 x 2048 f32, pread (np)": (np.s_[:, ::2], {"backend": "pread"}, 5),
        "columns 1/8 of a 64 MiB tensor (np)": (np.s_[:, 256:512], {}, None),
    }
    rows = []
    for case, (index, options, goal) in cases.items():
        openers = {"pagestream": safe_open, "safetensors": safetensors.safe_open}
        parts = {name: opener(path, "np", **options).get_slice("weight") for name, opener in openers.items()}
        assert np.array_equal(*(found[index] for found in parts.values()))
        contestants = {name: partial(found.__getitem__, index) for name, found in parts.items()}
        goals = {"safetensors": goal} if goal else {}
        rows.append(compare(case, contestants, rounds=9, goals=goals))
    path.unlink()
    return rows


def places(path: Path) -> np.ndarray:
    """Returns the positions in the file where the parts of the rows begin."""
    start = open_checkpoint(path).info("weight").offset + WANTED[1].start * 4
    return start + np.arange(ROWS, dtype="i8") * COLUMNS * 4


def needed_pages(path: Path) -> int:
    """Returns how many pages of the file contain a wanted byte."""
    first = places(path)
    last = first + WANTED_BYTES - 1
    # No two rows share a page, because the gaps are larger.
    return int((last // PAGE_BYTES - first // PAGE_BYTES + 1).sum())


def timed_cold(path: Path, way: Callable[[], np.ndarray], expected: np.ndarray) -> tuple[float, float]:
    """Returns the seconds and the bytes from the disk, for a file that is proven to be cold."""
    gc.collect()
    evict(path)
    before = device_bytes()
    begin = time.perf_counter()
    found = way()
    seconds = time.perf_counter() - begin
    read = device_bytes() - before
    assert np.array_equal(found, expected)
    return seconds, read


def cold(path: Path, read_ahead_kib: int | None) -> list[Row]:
    ways = {
        "pagestream": partial(part, safe_open, path, WANTED),
        'pagestream, mmap_mode="read"': partial(part, safe_open, path, WANTED, mmap_mode="read"),
        "safetensors slice": partial(part, safetensors.safe_open, path, WANTED),
        "safetensors slice, pread": partial(part, safetensors.safe_open, path, WANTED, backend="pread"),
        "safetensors slice (pt), made contiguous": partial(by_torch, path, WANTED),
        "safetensors, all of it, then sliced": partial(whole, path, WANTED),
    }
    expected, needed = whole(path, WANTED), needed_pages(path) * PAGE_BYTES
    seconds: dict[str, list[float]] = {name: [] for name in ways}
    shares: dict[str, list[float]] = {name: [] for name in ways}
    for turn in range(ROUNDS):
        for name in in_turn(list(ways), turn):
            elapsed, read = timed_cold(path, ways[name], expected)
            seconds[name].append(elapsed)
            shares[name].append(read / needed)
        # A separate process does this, because it evicts the file itself.
        starts = places(path) // 2
        found = direct_reader(path, WANTED_BYTES // 2, starts, engine="uring")
        seconds.setdefault(LIMIT, []).append(found["seconds"])
        shares.setdefault(LIMIT, []).append(found["device_bytes"] / needed)
    ours, ours_read, *rivals = seconds
    case = f"columns 1/8 of a cold matrix of 1 GiB, read-ahead {read_ahead_kib} KiB"
    rows = []
    for name in (ours, ours_read):
        figures = {key: seconds[key] for key in (name, *rivals)}
        remarks = {key: f"{np.median(shares[key]):.2f} of the needed pages" for key in figures}
        goals = {"safetensors slice": 3.0, "safetensors, all of it, then sliced": 3.0}
        rows.append(Row(case, name, figures, goals=goals, limits=[LIMIT], remarks=remarks))
        bytes_read = Row(f"bytes read by {name}", name, {name: shares[name]}, "of the needed pages")
        bytes_read.goals = {name: 1.3}
        rows.append(bytes_read)
    return rows


def gaps(path: Path) -> list[Row]:
    """For information: compares the rule for gaps with other limits, on evenly spaced runs of a cold file."""
    rows = []
    for run, step in ((512, 1024), (512, 4096), (512, 8192), (4096, 8192), (8192, 65_536)):
        figures: dict[str, list[float]] = {}
        remarks = {}
        for _ in range(3):
            for gap in (4096, 0, 512, 16_384):
                evict(path)
                command = [example("slice_reader"), str(path), "--run", str(run), "--step", str(step)]
                done = subprocess.run(
                    [*command, "--gap", str(gap)], check=True, capture_output=True, text=True
                )
                found, name = json.loads(done.stdout), f"gaps below {gap} bytes"
                figures.setdefault(name, []).append(found["seconds"])
                remarks[name] = f"{found['device_bytes'] / 2**20:,.0f} MiB in {found['reads']:,} reads"
        others = [name for name in figures if name != "gaps below 4096 bytes"]
        case = f"{run:,} bytes out of each {step:,} of a cold 1 GiB"
        rows.append(Row(case, "gaps below 4096 bytes", figures, remarks=remarks, limits=others))
    return rows


def measure(folder: Path) -> list[Row]:
    rows = warm(folder)
    path = make(folder / "1024.safetensors", (ROWS, COLUMNS))
    with MappedFile(path) as file:
        file.evict()  # writes it to the disk
    rows += cold(path, read_ahead_kb(path))
    with read_ahead(path, READ_AHEAD_KIB) as kib:
        if kib == READ_AHEAD_KIB:
            rows += cold(path, kib)
    rows += gaps(path)
    return rows

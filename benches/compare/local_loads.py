"""Whole checkpoints from the local disk to CPU memory: cold, and warm with and without `install`."""

import tempfile
from collections.abc import Callable
from contextlib import AbstractContextManager
from functools import partial
from pathlib import Path

import numpy as np
import opens
import safetensors
import safetensors.torch
import torch
from cold import read_ahead, read_ahead_kb, sequential_seconds
from fresh import Load, alternate, load, load_cold
from harness import Row, compare
from load_weights import used
from weight_files import written

import pagestream.safetensors
from pagestream import MappedFile

TITLE = "whole checkpoints from the local disk, to CPU memory"
SHARDS, TENSORS, SHAPE = 4, 32, (2048, 2048)
OURS = ["stream", "stream, direct", "safe_open, installed", "load_file, installed"]
STOCK = ["safetensors, mmap", "safetensors, pread", "safetensors, load_file"]
RIVALS = [
    "runai-model-streamer",
    "runai-model-streamer, io_uring_buffered",
    "fastsafetensors",
    "cattensors",
    "torch.load(mmap=True)",
]
DISK = "the disk alone: O_DIRECT in order, 16 blocks of 1 MiB at a time"
COLD_ROUNDS, NEW_ROUNDS, AGAIN_ROUNDS = 5, 15, 21
READ_AHEAD_KIB = 128
# If there is nothing to read, read-ahead may take at most this many times as long as no read-ahead.
MOST_WITH_AHEAD = 1.02
INSTALLED, WITHOUT, UPSTREAM = "installed", "installed, ahead=False", "safetensors"


def measure(folder: Path, cases: list[str]) -> list[Row]:
    rows = []
    for name in cases:
        with tempfile.TemporaryDirectory(dir=folder) as inner:
            rows += CASES[name](Path(inner) / "source")
    return rows


# --- cold --------------------------------------------------------------------------------------------


def cold_as_it_is(source: Path) -> list[Row]:
    sums = make(source)
    return cold(source, sums, read_ahead_kb(source))


def cold_with_little_read_ahead(source: Path) -> list[Row]:
    sums = make(source)
    with read_ahead(source, READ_AHEAD_KIB) as kib:
        if kib != READ_AHEAD_KIB:
            print(f"The read-ahead of the disk stays at {kib} KiB: this process may not set it.")
            return []
        return cold(source, sums, kib)


def make(source: Path) -> dict[str, int]:
    tensors = written(source, shards=SHARDS, tensors=TENSORS, shape=SHAPE, also_pickled=True)
    return {name: used(array) for name, array in tensors}


def cold(source: Path, sums: dict[str, int], read_ahead_kib: int | None) -> list[Row]:
    def measured(way: str) -> Load:
        if way == DISK:
            seconds = sum(map(sequential_seconds, sorted(source.glob("*.safetensors"))))
            return Load(seconds, first_seconds=seconds)
        return load_cold("load_weights.py", way, source, sums)

    for path in source.iterdir():
        sequential_seconds(path)  # fills the caches below the disk before the first round
    found = alternate([*OURS, DISK, *STOCK, *RIVALS], measured, rounds=COLD_ROUNDS)
    seconds = {way: [each.seconds for each in loads] for way, loads in found.items()}
    rows = []
    for ours in OURS:
        others = [DISK, *STOCK, *(RIVALS if ours == "stream" else [])]
        figures = {way: seconds[way] for way in (ours, *others)}
        goals = {DISK: 0.95} | dict.fromkeys(STOCK, 1.0)
        case = f"1 GiB in {SHARDS} shards, cold, read-ahead {read_ahead_kib} KiB"
        rows.append(Row(case, ours, figures, goals=goals, limits=[DISK]))
    return rows


# --- warm, in new processes --------------------------------------------------------------------------


def warm_in_new_processes(source: Path) -> list[Row]:
    """Includes the one-time costs of a process."""
    sums = make(source)
    ways = {
        "safe_open": ["safe_open, installed", "safe_open, installed, ahead=False", "safetensors, mmap"],
        "load_file": ["load_file, installed", "load_file, installed, ahead=False", "safetensors, load_file"],
    }

    def measured(way: str) -> Load:
        for path in source.glob("*.safetensors"):
            keep_warm(path)
        return load("load_weights.py", [way, str(source)], sums)

    found = alternate([way for them in ways.values() for way in them], measured, rounds=NEW_ROUNDS)
    rows = []
    for function, them in ways.items():
        figures = {way: [each.seconds for each in found[way]] for way in them}
        ours, without, upstream = them
        case = f"1 GiB in {SHARDS} shards, warm, a new process, {function}"
        rows.append(Row(case, ours, figures, goals={upstream: 1.0}, limits=[without]))
        rows.append(with_over_without(case, figures[ours], figures[without]))
    return rows


def keep_warm(path: Path) -> None:
    """Brings the file into the page cache, and verifies that."""
    with path.open("rb", buffering=0) as file:
        buffer = bytearray(1 << 20)
        while file.readinto(buffer):
            pass
    with MappedFile(path) as mapped:
        fraction = mapped.residency().fraction
    if fraction < 1:
        message = f"only {fraction:.1%} of {path} stays in the page cache"
        raise RuntimeError(message)


def with_over_without(case: str, with_ahead: list[float], without: list[float]) -> Row:
    """Returns the ratio of the time with read-ahead to the time without, round by round."""
    shares = [one / other for one, other in zip(with_ahead, without, strict=True)]
    name = "with read-ahead, of the time without, in the same round"
    return Row(case, name, {name: shares}, "times", goals={name: MOST_WITH_AHEAD})


# The program below imports `safetensors`, and `install` puts pagestream under that name in this module too.


def get_each(path: Path, framework: str) -> None:
    with safetensors.safe_open(path, framework) as file:
        for name in file.keys():  # noqa: SIM118 - upstream's has no iterator
            file.get_tensor(name)


def sum_each(path: Path, framework: str) -> None:
    with safetensors.safe_open(path, framework) as file:
        for name in file.keys():  # noqa: SIM118 - upstream's has no iterator
            file.get_tensor(name).sum()


def load_all(path: Path, framework: str) -> None:
    assert framework == "pt"
    safetensors.torch.load_file(path)


def everything(path: Path, framework: str) -> dict[str, bytes]:
    with safetensors.safe_open(path, framework) as file:
        return {name: np.asarray(file.get_tensor(name)).tobytes() for name in file.keys()}  # noqa: SIM118


CONTEXTS: dict[str, Callable[[], AbstractContextManager[object]]] = {
    INSTALLED: pagestream.safetensors.install,
    WITHOUT: partial(pagestream.safetensors.install, ahead=False),
}


def prove(path: Path, framework: str) -> None:
    """Proves that the program reads the same bytes, and uses pagestream if it should."""
    expected = everything(path, framework)
    for context in CONTEXTS.values():
        with context():
            assert safetensors.safe_open is pagestream.safetensors.safe_open
            assert everything(path, framework) == expected
    assert safetensors.safe_open is not pagestream.safetensors.safe_open


def warm_again_and_again(source: Path) -> list[Row]:
    threads = torch.get_num_threads()
    torch.set_num_threads(1)  # as NumPy does, so that a sum does not depend on other programs
    try:
        return of_one_process(source)
    finally:
        torch.set_num_threads(threads)


def of_one_process(source: Path) -> list[Row]:
    source.mkdir()
    large = opens.make(source / "large.safetensors", 128, 1 << 21)
    small = opens.make(source / "small.safetensors", 30_000, 1 << 10)
    uses = {"every tensor": get_each, "every tensor, summed": sum_each}
    rows = []
    for of_path, path in (("1 GiB in 128 tensors", large), ("30,000 tensors of 4 KiB", small)):
        keep_warm(path)
        for framework in ("np", "pt"):
            prove(path, framework)
            for of_use, use in (uses | ({"load_file": load_all} if framework == "pt" else {})).items():
                call = partial(use, path, framework)
                case = f"{of_path}, warm, {of_use} ({framework})"
                row = compare(
                    case,
                    dict.fromkeys((INSTALLED, WITHOUT, UPSTREAM), call),
                    rounds=AGAIN_ROUNDS,
                    goals={UPSTREAM: 1.0},
                    limits=[WITHOUT],
                    within=CONTEXTS,
                )
                rows += [row, with_over_without(case, row.figures[INSTALLED], row.figures[WITHOUT])]
    return rows


CASES: dict[str, Callable[[Path], list[Row]]] = {
    "cold, the disk's own read-ahead": cold_as_it_is,
    f"cold, read-ahead {READ_AHEAD_KIB} KiB": cold_with_little_read_ahead,
    "warm, new processes": warm_in_new_processes,
    "warm, one process": warm_again_and_again,
}

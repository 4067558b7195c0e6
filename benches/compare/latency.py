"""Duration of `next` on a cold file, if the program computes and needs 80 % of the device's rate."""

import random
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
from batches import MemmapWindows
from cold import direct_reader, evict, prove, read_ahead, read_ahead_kb, token_file
from harness import Row
from readers import BATCH, starts_of
from torch.utils.data import DataLoader

from pagestream import TokenLoader

TITLE = "time of next(loader), cold, at 80 % of the device's rate"
ROUNDS = 3
LENGTH = 1024
SHARE = 0.8
# The number of steps in a run, and the time limit for a loader that cannot keep up.
STEPS = 500
MOST_SECONDS = 10
# The first steps do not count, because loaders start in them.
STARTING_STEPS = 16
Batches = Iterator[tuple[np.ndarray, np.ndarray]]


def own(path: Path, _starts: np.ndarray, seed: int) -> Batches:
    options = {"sequence_length": LENGTH, "batch_size": BATCH, "epochs": None}
    with TokenLoader(path, order="random", seed=seed, **options) as loader:
        yield from loader


def by_data_loader(path: Path, starts: np.ndarray, _seed: int) -> Batches:
    dataset = MemmapWindows(path, LENGTH)
    for x, y in DataLoader(dataset, BATCH, sampler=starts.tolist(), num_workers=2):
        yield x.numpy(), y.numpy()


CONTESTANTS: dict[str, Callable[[Path, np.ndarray, int], Batches]] = {
    "TokenLoader": own,
    "DataLoader, 2 workers over np.memmap": by_data_loader,
}


def compute(until: float) -> None:
    """Does the work of one thread, mostly without the GIL, like a training step on this machine."""
    values = np.ones(1 << 14)
    while time.perf_counter() < until:
        np.sqrt(values, out=values)


def waits(name: str, path: Path, step_seconds: float, seed: int) -> np.ndarray:
    """Returns the duration of each `next` after the loader has started."""
    evict(path)
    rows = np.ones((STEPS * BATCH, LENGTH + 1), "u2")
    starts = starts_of(path, seed, rows)
    batches = CONTESTANTS[name](path, starts, seed)
    found = []
    begin = time.perf_counter()
    for step in range(STEPS):
        before = time.perf_counter()
        x, y = next(batches)
        after = time.perf_counter()
        found.append(after - before)
        rows[step * BATCH : (step + 1) * BATCH, 0] = x[:, 0]
        rows[step * BATCH : (step + 1) * BATCH, 1:] = y
        del x, y
        if step > 2 * STARTING_STEPS and after - begin > MOST_SECONDS:
            break
        compute(after + step_seconds)
    batches.close()
    done = len(found) * BATCH
    prove(path, starts[:done], rows[:done])
    return np.array(found[STARTING_STEPS:])


def measure(folder: Path) -> list[Row]:
    path = token_file(folder)
    rows = []
    for wanted in dict.fromkeys((read_ahead_kb(path) or 0, 128)):
        with read_ahead(path, wanted) as kib:
            rows += measure_at(path, f"read-ahead {kib} KiB")
    return rows


def measure_at(path: Path, case: str) -> list[Row]:
    ours, rival = CONTESTANTS
    high = Row(f"99th percentile, {case}", ours, {ours: [], rival: []}, goals={rival: 100})
    most = Row(f"longest, {case}", ours, {ours: [], rival: []})
    steps, counts = [], {}
    chance = random.Random(time.time_ns())
    for _ in range(ROUNDS):
        probe = np.broadcast_to(np.zeros((), "u2"), (8192, LENGTH + 1))
        starts = starts_of(path, chance.getrandbits(60), probe)
        rate = direct_reader(path, LENGTH + 1, starts, engine="uring")["windows_per_second"]
        steps.append(BATCH / (SHARE * rate))
        for name in CONTESTANTS:
            found = waits(name, path, steps[-1], chance.getrandbits(60))
            high.figures[name].append(float(np.percentile(found, 99)))
            most.figures[name].append(float(found.max()))
            counts[name] = len(found)
    high.goals[ours] = float(np.median(steps))
    for name, count in counts.items():
        high.remarks[name] = f"{count} steps of {np.median(steps) * 1e3:.2f} ms"
    return [high, most]

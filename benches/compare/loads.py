"""Whole checkpoints from slow mounts, cold, to CPU memory. Each byte of every tensor is used."""

import statistics
import tempfile
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from fresh import Load, alternate, load_slow
from harness import Row
from load_weights import used
from weight_files import written

TITLE = "whole checkpoints of 4 shards from a FUSE mount, cold, to CPU memory"
SHARDS, TENSORS_PER_GIB, SHAPE = 4, 32, (2048, 2048)
ROUNDS = 5
OURS = ["stream", "safe_open, installed", "load_file, installed"]
STOCK = ["safetensors, mmap", "safetensors, pread", "safetensors, load_file"]
FAST_RIVALS = ["runai-model-streamer, io_uring_buffered", "fastsafetensors"]
RIVALS = [*FAST_RIVALS, "runai-model-streamer", "cattensors", "torch.load(mmap=True)"]


@dataclass(frozen=True)
class Case:
    """A checkpoint, and a mount whose requests have at most `request_kib` and take `delay_ms`."""

    gib: int
    delay_ms: int
    direct_io: bool
    request_kib: int

    @property
    def name(self) -> str:
        large = "" if self.request_kib == 128 else f" of {self.request_kib} KiB"
        means = "direct_io" if self.direct_io else "cached"
        return f"{self.gib} GiB, {self.delay_ms} ms per request{large}, {means}"


CASES = {
    case.name: case
    for gib, delay_ms, request_kib in ((1, 10, 128), (1, 2, 128), (4, 10, 128), (1, 50, 1024))
    for case in (Case(gib, delay_ms, direct_io, request_kib) for direct_io in (False, True))
}


def measure(folder: Path, cases: list[str]) -> list[Row]:
    rows = []
    for gib in dict.fromkeys(CASES[name].gib for name in cases):
        with tempfile.TemporaryDirectory(dir=folder) as inner:
            source = Path(inner) / "source"
            tensors = written(
                source,
                shards=SHARDS,
                tensors=gib * TENSORS_PER_GIB,
                shape=SHAPE,
                also_pickled=gib == 1,  # for `torch.load`
            )
            sums = {name: used(array) for name, array in tensors}
            for name in cases:
                if CASES[name].gib == gib:
                    rows += of_mount(name, CASES[name], source, sums)
    return rows


def of_mount(name: str, case: Case, source: Path, sums: dict[str, int]) -> list[Row]:
    # Other cases include only the ways that are fast in the usual case, and `safetensors` for the ratio.
    is_whole = (case.gib, case.request_kib) == (1, 128)
    stock, rivals = (STOCK, RIVALS) if is_whole else (STOCK[:1], FAST_RIVALS)
    load = partial(
        load_slow,
        "load_weights.py",
        source=source,
        sums=sums,
        needed_bytes=case.gib << 30,
        delay_ms=case.delay_ms,
        direct_io=case.direct_io,
        request_bytes=case.request_kib << 10,
    )
    found = alternate([*OURS, *stock, *rivals], load, rounds=ROUNDS)
    seconds = {way: [each.seconds for each in loads] for way, loads in found.items()}
    remarks = {way: delivered(loads, case.gib << 30) for way, loads in found.items()}
    # At 2 ms, the processor is the bottleneck.
    is_slow = case.delay_ms > 2
    goals = dict.fromkeys(stock, 10.0 if is_slow else 5.0)
    goals |= dict.fromkeys(rivals, 1.0 if is_slow else 0.9) | {"stream": 0.9}
    rows = []
    for ours in OURS:
        # A program that loads with `safetensors` is compared with itself, and with the best alternative.
        others = [*stock, *rivals] if ours == "stream" else [*stock, "stream", *([] if is_slow else rivals)]
        figures = {way: seconds[way] for way in (ours, *others)}
        told = {way: remarks[way] for way in figures}
        rows.append(Row(name, ours, figures, goals={way: goals[way] for way in others}, remarks=told))
        rows.append(first_tensor(name, ours, [*stock, *rivals] if ours == "stream" else stock, found))
    return rows


def delivered(loads: list[Load], needed_bytes: int) -> str:
    """Returns the mount's counts for the loads in one way."""
    share = statistics.median(each.delivered_bytes for each in loads) / needed_bytes
    in_flight = statistics.median(each.most_in_flight for each in loads)
    return f"{share:.2f} of the bytes delivered, at most {in_flight:.0f} requests in flight"


def first_tensor(name: str, ours: str, rivals: list[str], found: dict[str, list[Load]]) -> Row:
    """Compares the time to our first tensor with the time of the fastest rival for all tensors."""
    fastest = min(rivals, key=lambda way: statistics.median(each.seconds for each in found[way]))
    figures = {
        ours: [each.first_seconds for each in found[ours]],
        f"{fastest}, all": [each.seconds for each in found[fastest]],
    }
    return Row(f"{name}, first tensor", ours, figures, goals={f"{fastest}, all": 10.0})

"""One of eight ranks loads its part of a checkpoint from slow mounts, cold: an eighth of each matrix."""

import statistics
import tempfile
from dataclasses import dataclass
from pathlib import Path

from fresh import Load, alternate, load_slow
from harness import Row
from load_weights import used
from slice_weights import RANKS, part
from weight_files import written

TITLE = f"1/{RANKS} of each matrix of a checkpoint of 1 GiB from a FUSE mount, cold, to CPU memory"
SHARDS, TOTAL_BYTES = 8, 1 << 30
DELAY_MS, ROUNDS = 10, 5
OURS = ["stream(plan)", "get_slice, installed"]
RIVALS = [
    "safetensors slices",
    "safetensors slices, pread",
    "torch's reader, 1 thread",
    "torch's reader, 8 threads",
]
# If the wanted bytes lie in runs of at least this length, hardly any other bytes may be read.
LONG_RUN_BYTES, MOST_BYTES = 64 << 10, 1.2


@dataclass(frozen=True)
class Case:
    """bfloat16 matrices that are split along a dimension."""

    shape: tuple[int, int]
    dimension: int
    direct_io: bool

    @property
    def run_bytes(self) -> int:
        """Returns how many wanted bytes are adjacent."""
        rows, columns = self.shape
        return columns * 2 // RANKS if self.dimension == 1 else rows * columns * 2 // RANKS


CASES = {
    f"{kind}, {'direct_io' if direct_io else 'cached'}": Case(shape, dimension, direct_io)
    for kind, shape, dimension in (
        ("rows of 4,096 x 4,096", (4096, 4096), 0),
        ("columns of 4,096 x 4,096", (4096, 4096), 1),
        # Long runs with gaps: no model has such matrices, but stacked expert matrices look like this.
        ("columns of 64 x 262,144", (64, 1 << 18), 1),
    )
    for direct_io in (False, True)
}


def measure(folder: Path, cases: list[str]) -> list[Row]:
    rows = []
    for shape in dict.fromkeys(CASES[name].shape for name in cases):
        with tempfile.TemporaryDirectory(dir=folder) as inner:
            source = Path(inner) / "source"
            sums: tuple[dict[str, int], ...] = ({}, {})
            tensors = TOTAL_BYTES // SHARDS // (shape[0] * shape[1] * 2)
            for name, array in written(source, shards=SHARDS, tensors=tensors, shape=shape):
                for dimension in (0, 1):
                    sums[dimension][name] = used(array[part(shape, dimension)])
            for name in cases:
                if CASES[name].shape == shape:
                    rows += of_mount(name, CASES[name], source, sums[CASES[name].dimension])
    return rows


def of_mount(name: str, case: Case, source: Path, sums: dict[str, int]) -> list[Row]:
    needed_bytes = TOTAL_BYTES // RANKS

    def load(way: str) -> Load:
        return load_slow(
            "slice_weights.py",
            way,
            source,
            sums,
            str(case.dimension),
            needed_bytes=needed_bytes,
            delay_ms=DELAY_MS,
            direct_io=case.direct_io,
        )

    found = alternate([*OURS, *RIVALS], load, rounds=ROUNDS)
    shares = {way: [each.delivered_bytes / needed_bytes for each in loads] for way, loads in found.items()}
    told = {way: f"{statistics.median(share):.2f} of the needed bytes" for way, share in shares.items()}
    rows = []
    for ours in OURS:
        figures = {way: [each.seconds for each in found[way]] for way in (ours, *RIVALS)}
        remarks = {way: told[way] for way in figures}
        rows.append(Row(name, ours, figures, goals=dict.fromkeys(RIVALS, 5.0), remarks=remarks))
        delivered = Row(f"{name}, bytes delivered", ours, {ours: shares[ours]}, "of those needed")
        if case.run_bytes >= LONG_RUN_BYTES:
            delivered.goals = {ours: MOST_BYTES}
        rows.append(delivered)
    return rows

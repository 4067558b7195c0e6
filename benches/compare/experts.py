"""Parts of tensors requested in sequence, from slow mounts, cold."""

import tempfile
from pathlib import Path

from fresh import Load, alternate, load_slow
from harness import Row
from load_weights import used
from weight_files import written

TOTAL_BYTES, ROWS = 256 << 20, 16
TITLE = f"256 MiB from a FUSE mount, cold, to CPU memory, the {ROWS} rows of each matrix one by one"
DELAY_MS, ROUNDS = 10, 5
OURS = "get_slice, installed"
# With pread, `safetensors` reads the whole tensor for each slice.
STOCK, WITHOUT = "safetensors slices", "get_slice, installed, ahead=False"

CASES = {
    f"rows of {row_bytes >> 10} KiB, {'direct_io' if direct_io else 'cached'}": (row_bytes, direct_io)
    for row_bytes in (16 << 10, 64 << 10, 1 << 20)
    for direct_io in (False, True)
}


def measure(folder: Path, cases: list[str]) -> list[Row]:
    rows = []
    for row_bytes in dict.fromkeys(CASES[name][0] for name in cases):
        with tempfile.TemporaryDirectory(dir=folder) as inner:
            source = Path(inner) / "source"
            tensors = TOTAL_BYTES // (ROWS * row_bytes)
            sums = {
                f"{name}.{number}": used(row)
                for name, array in written(source, shards=1, tensors=tensors, shape=(ROWS, row_bytes // 2))
                for number, row in enumerate(array)
            }
            of_size = [name for name in cases if CASES[name][0] == row_bytes]
            rows += [of_mount(name, source, sums, direct_io=CASES[name][1]) for name in of_size]
    return rows


def of_mount(name: str, source: Path, sums: dict[str, int], *, direct_io: bool) -> Row:
    def load(way: str) -> Load:
        return load_slow(
            "expert_weights.py",
            way,
            source,
            sums,
            needed_bytes=TOTAL_BYTES,
            delay_ms=DELAY_MS,
            direct_io=direct_io,
        )

    found = alternate([OURS, STOCK, WITHOUT], load, rounds=ROUNDS)
    figures = {way: [each.seconds for each in loads] for way, loads in found.items()}
    return Row(name, OURS, figures, goals={STOCK: 1.0})

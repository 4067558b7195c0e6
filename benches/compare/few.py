"""Programs that get little from reading ahead: few tensors, threads by blocks, small files."""

import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import safetensors.numpy
from few_weights import WAYS, is_norm, is_of_kept_layer
from fresh import Load, alternate, load_slow
from harness import Row
from load_weights import used

LAYERS, WEIGHT_BYTES, NORM_BYTES = 64, 4 << 20, 1 << 10
FILES, OF_FILE = 20, 10
BANDWIDTH_BYTES = 100_000_000
DELAY_MS, ROUNDS = 2, 5
TITLE = f"a cold FUSE mount with {DELAY_MS} ms a request and 100 MB/s, to CPU memory"
OURS, STOCK, _ = WAYS


@dataclass(frozen=True)
class Case:
    """What is used of which files, how, and whether the mount is one with direct_io."""

    pattern: str
    direct_io: bool
    is_wanted: Callable[[str], bool] = lambda _: True
    file_bytes: int | None = None


CASES: dict[str, Case] = {}
for _kind, _direct_io in (("cached", False), ("direct_io", True)):
    CASES |= {
        f"norms of 1 KiB between weights of 4 MiB, {_kind}": Case("norms", _direct_io, is_norm),
        f"every third layer of 64, {_kind}": Case("every third layer", _direct_io, is_of_kept_layer),
        f"4 threads, a block of the file each, {_kind}": Case("threads", _direct_io),
        f"{FILES} files of 300 KiB, NumPy, {_kind}": Case(
            "load_file of NumPy", _direct_io, file_bytes=300 << 10
        ),
        f"{FILES} files of 300 KiB, torch, {_kind}": Case(
            "load_file of torch", _direct_io, file_bytes=300 << 10
        ),
        f"{FILES} files of 1200 KiB, NumPy, {_kind}": Case(
            "load_file of NumPy", _direct_io, file_bytes=1200 << 10
        ),
    }


def measure(folder: Path, cases: list[str]) -> list[Row]:
    rows = []
    for name in cases:
        with tempfile.TemporaryDirectory(dir=folder) as inner:
            source = Path(inner) / "source"
            source.mkdir()
            size = CASES[name].file_bytes
            rows.append(of_case(name, source, model(source) if size is None else small_files(source, size)))
    return rows


def model(source: Path) -> dict[str, int]:
    sizes = {}
    for layer in range(LAYERS):
        sizes |= {
            f"model.layers.{layer:02}.norm": NORM_BYTES,
            f"model.layers.{layer:02}.weight": WEIGHT_BYTES,
        }
    return write(source / "model.safetensors", sizes, seed=0)


def small_files(source: Path, file_bytes: int) -> dict[str, int]:
    sums = {}
    for number in range(FILES):
        sizes = {
            f"model.layers.{number * OF_FILE + each}.lora": file_bytes // OF_FILE for each in range(OF_FILE)
        }
        sums |= write(source / f"{number:02}.safetensors", sizes, seed=number)
    return sums


def write(path: Path, sizes: dict[str, int], *, seed: int) -> dict[str, int]:
    """Writes random tensors, and returns the sum of each."""
    generator = np.random.default_rng(seed)
    arrays = {
        name: generator.integers(0, 1 << 16, size // 2, dtype=np.uint16).view(np.float16)
        for name, size in sizes.items()
    }
    safetensors.numpy.save_file(arrays, path)
    return {name: used(array.view(np.uint16)) for name, array in arrays.items()}


def of_case(name: str, source: Path, all_sums: dict[str, int]) -> Row:
    case = CASES[name]
    sums = {name: total for name, total in all_sums.items() if case.is_wanted(name)}
    needed = sum(
        NORM_BYTES if is_norm(each) else case.file_bytes // OF_FILE if case.file_bytes else WEIGHT_BYTES
        for each in sums
    )

    def load(way: str) -> Load:
        return load_slow(
            "few_weights.py",
            f"{case.pattern}: {way}",
            source,
            sums,
            needed_bytes=needed,
            delay_ms=DELAY_MS,
            direct_io=case.direct_io,
            bandwidth_bytes=BANDWIDTH_BYTES,
        )

    found = alternate(list(WAYS), load, rounds=ROUNDS)
    figures = {way: [each.seconds for each in loads] for way, loads in found.items()}
    remarks = {
        way: f"{max(each.delivered_bytes for each in loads) / 1e6:.0f} MB" for way, loads in found.items()
    }
    return Row(name, OURS, figures, goals={STOCK: 1.0}, remarks=remarks)

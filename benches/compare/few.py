"""Programs that benefit little from read-ahead: few tensors, experts, neighbours, blocks, small files."""

import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import NamedTuple

import numpy as np
import safetensors.numpy
from few_weights import (
    MODULES,
    ROWS,
    SMALL_TENSORS,
    TENSOR_ROWS,
    TINY_TENSORS,
    WAYS,
    is_norm,
    is_of_first_layers,
    is_of_kept_layer,
    is_of_pair,
    is_of_triple,
    is_own_expert,
)
from fresh import Load, alternate, load_slow
from harness import Row
from load_weights import used

LAYERS, WEIGHT_BYTES, NORM_BYTES = 64, 4 << 20, 1 << 10
MODULE_LAYERS, MATRIX_BYTES = 24, 5 << 18
EXPERT_LAYERS, EXPERTS, EXPERT_BYTES = 16, 64, 256 << 10
FILES, OF_FILE = 20, 10
BANDWIDTH_BYTES = 100_000_000
DELAY_MS, ROUNDS = 2, 5
TITLE = f"a cold FUSE mount with {DELAY_MS} ms per request and 100 MB/s, to CPU memory"
OURS, STOCK, _ = WAYS


class Tensor(NamedTuple):
    """The expected content and length of a tensor."""

    total: int
    size_bytes: int


def write(path: Path, sizes: dict[str, int], *, seed: int) -> dict[str, Tensor]:
    """Writes random tensors with these sizes."""
    generator = np.random.default_rng(seed)
    arrays = {
        name: generator.integers(0, 1 << 16, size // 2, dtype=np.uint16).view(np.float16)
        for name, size in sizes.items()
    }
    safetensors.numpy.save_file(arrays, path)
    return {name: Tensor(used(array.view(np.uint16)), array.nbytes) for name, array in arrays.items()}


def model(source: Path) -> dict[str, Tensor]:
    sizes = {}
    for layer in range(LAYERS):
        sizes |= {
            f"model.layers.{layer:02}.norm": NORM_BYTES,
            f"model.layers.{layer:02}.weight": WEIGHT_BYTES,
        }
    return write(source / "model.safetensors", sizes, seed=0)


def modules(source: Path) -> dict[str, Tensor]:
    """Returns layers of matrices and norms."""
    sizes = {
        f"model.layers.{layer:02}.{module}": NORM_BYTES if module.startswith("norm") else MATRIX_BYTES
        for layer in range(MODULE_LAYERS)
        for module in MODULES
    }
    return write(source / "model.safetensors", sizes, seed=0)


def mixture(source: Path) -> dict[str, Tensor]:
    """Returns layers of experts."""
    sizes = {
        f"model.layers.{layer:02}.experts.{expert:02}.weight": EXPERT_BYTES
        for layer in range(EXPERT_LAYERS)
        for expert in range(EXPERTS)
    }
    return write(source / "model.safetensors", sizes, seed=0)


def tensors(count: int, tensor_bytes: int, source: Path) -> dict[str, Tensor]:
    sizes = {f"tensors.{number:05}": tensor_bytes for number in range(count)}
    return write(source / "model.safetensors", sizes, seed=0)


def matrices(row_bytes: int, source: Path) -> dict[str, Tensor]:
    """Returns tensors of which one row each is used."""
    shape = (TENSOR_ROWS, row_bytes)
    arrays = {
        f"tensors.{number:05}": np.random.default_rng(number).integers(0, 256, shape, dtype=np.uint8)
        for number in sorted(ROWS)
    }
    safetensors.numpy.save_file(arrays, source / "model.safetensors")
    used_rows = {name: arrays[name][ROWS[number]] for number, name in enumerate(arrays)}
    return {name: Tensor(used(row), row.nbytes) for name, row in used_rows.items()}


def small_files(file_bytes: int, source: Path) -> dict[str, Tensor]:
    tensors = {}
    for number in range(FILES):
        sizes = {
            f"model.layers.{number * OF_FILE + each}.lora": file_bytes // OF_FILE for each in range(OF_FILE)
        }
        tensors |= write(source / f"{number:02}.safetensors", sizes, seed=number)
    return tensors


@dataclass(frozen=True)
class Case:
    """The files, the tensors used, the way to load, and whether the mount has direct_io."""

    pattern: str
    direct_io: bool
    is_wanted: Callable[[str], bool] = lambda _: True
    make: Callable[[Path], dict[str, Tensor]] = model


CASES: dict[str, Case] = {}
for _kind, _direct_io in (("cached", False), ("direct_io", True)):
    CASES |= {
        f"norms of 1 KiB between weights of 4 MiB, {_kind}": Case("norms", _direct_io, is_norm),
        f"every third layer of 64, {_kind}": Case("every third layer", _direct_io, is_of_kept_layer),
        f"the first 8 layers of 64, {_kind}": Case("first layers", _direct_io, is_of_first_layers),
        f"8 of 64 experts of each layer, {_kind}": Case("experts", _direct_io, is_own_expert, mixture),
        f"4 threads, a block of the file each, {_kind}": Case("threads", _direct_io),
        f"24 layers in the order of modules, {_kind}": Case("modules", _direct_io, make=modules),
        f"400 times 2 neighbours of 2 KiB, {_kind}": Case(
            "pairs", _direct_io, is_of_pair, partial(tensors, TINY_TENSORS, 2 << 10)
        ),
        f"60 times 3 neighbours of 256 KiB, {_kind}": Case(
            "triples", _direct_io, is_of_triple, partial(tensors, SMALL_TENSORS, 256 << 10)
        ),
    }
    CASES[f"a row of 4 KiB of each of {len(ROWS)} tensors, NumPy, {_kind}"] = Case(
        "rows", _direct_io, make=partial(matrices, 4 << 10)
    )
    for _kib, _library in ((300, "NumPy"), (300, "torch"), (1200, "NumPy")):
        CASES[f"{FILES} files of {_kib} KiB, {_library}, {_kind}"] = Case(
            f"load_file of {_library}", _direct_io, make=partial(small_files, _kib << 10)
        )


def measure(folder: Path, cases: list[str]) -> list[Row]:
    rows = []
    for name in cases:
        with tempfile.TemporaryDirectory(dir=folder) as inner:
            source = Path(inner) / "source"
            source.mkdir()
            rows.append(of_case(name, source))
    return rows


def of_case(name: str, source: Path) -> Row:
    case = CASES[name]
    wanted = {name: tensor for name, tensor in case.make(source).items() if case.is_wanted(name)}
    sums = {name: tensor.total for name, tensor in wanted.items()}
    needed = sum(tensor.size_bytes for tensor in wanted.values())

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

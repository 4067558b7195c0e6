"""Checkpoints to a GPU: first a comparison of tensors, then rates, with rivals and with pinned copies alone.

    python benches/gpu/weights.py [--folder DIR] [--gib 4] [--rounds 5]

Without a GPU, it says so and uses the CPU in place of one: bytes go through staging all the same. Prints
Markdown.
"""

import argparse
import gc
import importlib.util
import statistics
import sys
import tempfile
import time
import warnings
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import safetensors
import safetensors.torch
import torch
from batches import pinned_rate
from torch import nn

sys.path.append(str(Path(__file__).parents[1] / "compare"))
from cold import ROOT, evict
from harness import Row, machine, table

import pagestream.safetensors.torch
from pagestream.devices import copy_device
from pagestream.torch import load_into, load_state_dict, stream_checkpoint

sys.path.append(str(ROOT / "tests/python"))
from support import real
from support.weight_files import ELEMENT_TYPES

MIB = 1 << 20
# The bfloat16 sizes of a layer's tensors: projections and norms of a model with a few billion parameters.
LAYER = {"attention": (4096, 4096), "up": (14336, 4096), "down": (4096, 14336), "norm": (4096,)}
SHARD_BYTES = 2 << 30
HAS_GPU = torch.cuda.is_available()
PLACE = "cuda" if HAS_GPU else "cpu"

Loaded = Iterator[tuple[str, torch.Tensor]]


def synchronize() -> None:
    if HAS_GPU:
        torch.cuda.synchronize()


# --- the same tensors --------------------------------------------------------------------------------


def bits(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.detach().cpu().contiguous().reshape(-1).view(torch.uint8)


def compare(case: str, found: dict[str, torch.Tensor], expected: dict[str, torch.Tensor]) -> None:
    for name, tensor in expected.items():
        there = found[name]
        is_same = (there.dtype, there.shape) == (tensor.dtype, tensor.shape)
        if not is_same or not torch.equal(bits(there), bits(tensor)) or there.is_cuda != HAS_GPU:
            message = f"{case}: {name} on the device is not that of the file"
            raise AssertionError(message)
    print(f"* the same: {case}")


def of_every_type(folder: Path) -> Path:
    generator = np.random.default_rng(1)
    tensors = {}
    for _, name, kind in ELEMENT_TYPES:
        content = generator.integers(0, 2 if name == "bool" else 256, 3000 * np.dtype(kind).itemsize, "u1")
        tensors[name] = torch.from_numpy(content).view(getattr(torch, name)).view(30, 100)
    tensors |= {"empty": torch.empty(0, 3), "large": torch.randn(5000, 2000), "three": torch.arange(3).byte()}
    safetensors.torch.save_file(tensors, folder / "types.safetensors")
    return folder / "types.safetensors"


def verify(folder: Path, device: str) -> None:
    path = of_every_type(folder)
    expected = safetensors.torch.load_file(path)
    compare("every type", load_state_dict(path, device), expected)
    for memory_bytes in (1, 8 * MIB):
        stream = stream_checkpoint(path, device=device, memory_bytes=memory_bytes)
        compare(f"through staging of {max(4, memory_bytes // MIB)} MiB", dict(stream), expected)
    plan = {"large": np.s_[::-3, 100:700], "float32": np.s_[3], "bfloat16": None}
    compare(
        "parts",
        load_state_dict(path, device, plan=plan),
        {
            "large": torch.from_numpy(expected["large"].numpy()[::-3, 100:700].copy()),
            "float32": expected["float32"][3],
            "bfloat16": expected["bfloat16"],
        },
    )
    cast = {name: expected[name].to(torch.bfloat16) for name in ("float16", "bfloat16", "large")}
    found = load_state_dict(path, device, plan=list(cast), dtype=torch.bfloat16)
    # The device chooses the bits of a NaN itself.
    numbers = [{name: tensor.nan_to_num(7) for name, tensor in each.items()} for each in (found, cast)]
    compare("cast on the way", *numbers)
    verify_late(folder, device)
    verify_modules(folder, device)
    verify_ends(path, device)


def verify_late(folder: Path, device: str) -> None:
    """Uses tensors while the device lags behind: staging is returned late, and tensors have not arrived
    yet."""
    tensors = {f"t{number:03}": torch.full((MIB,), number, dtype=torch.int32) for number in range(100)}
    safetensors.torch.save_file(tensors, folder / "late.safetensors")
    busy, sums = torch.randn(2048, 2048, device=device), {}
    stream = stream_checkpoint(folder / "late.safetensors", device=device, memory_bytes=16 * MIB)
    for name, tensor in stream:
        if HAS_GPU:
            for _ in range(4):
                busy = busy @ busy / 2048
        # The tensor is dropped while work on it is in flight. Its memory must not be reused before that.
        sums[name] = tensor.sum(dtype=torch.int64)
        del tensor
    expected = {name: tensor.sum(dtype=torch.int64) for name, tensor in tensors.items()}
    compare("tensors used while the device lags behind, and dropped", sums, expected)


def verify_modules(folder: Path, device: str) -> None:
    layer = nn.TransformerEncoderLayer(512, 8, 2048)
    held = {name: tensor.clone() for name, tensor in layer.state_dict().items()}
    safetensors.torch.save_file(held, folder / "layer.safetensors")
    module = nn.TransformerEncoderLayer(512, 8, 2048).to(device, torch.bfloat16)
    load_into(module, folder / "layer.safetensors")
    expected = {name: tensor.bfloat16() for name, tensor in held.items()}
    compare("a module filled in place", module.state_dict(), expected)
    with torch.device("meta"):
        module = nn.TransformerEncoderLayer(512, 8, 2048)
    with torch.device(device):
        load_into(module, folder / "layer.safetensors")
    compare("a module on meta", module.state_dict(), held)


def verify_ends(path: Path, device: str) -> None:
    """Abandoned streams leave no memory page-locked: a leftover registration would make a later one fail."""
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for _ in range(30):
            stream = stream_checkpoint(path, device=device, memory_bytes=64 * MIB)
            next(stream)
            stream.close()
    print("* 30 streams that were closed early left nothing behind")


# --- rates -------------------------------------------------------------------------------------------


def random_words(shape: tuple[int, ...], generator: torch.Generator) -> torch.Tensor:
    words = torch.empty(shape, dtype=torch.int16, device=PLACE).random_(generator=generator)
    return words.view(torch.bfloat16).cpu()


def checkpoint(folder: Path, gib: float) -> Path:
    """Writes shards of at most 2 GiB."""
    folder.mkdir()
    generator = torch.Generator(PLACE).manual_seed(0)
    layer_bytes = sum(2 * int(np.prod(shape)) for shape in LAYER.values())
    layers = max(1, int(gib * (1 << 30) / layer_bytes))
    each = max(1, SHARD_BYTES // layer_bytes)
    for shard, first in enumerate(range(0, layers, each)):
        tensors = {
            f"layers.{layer}.{name}": random_words(shape, generator)
            for layer in range(first, min(layers, first + each))
            for name, shape in LAYER.items()
        }
        safetensors.torch.save_file(tensors, folder / f"model-{shard:05}.safetensors")
    return folder


def by_load_file(load_file: Callable[..., dict[str, torch.Tensor]], folder: Path, device: str) -> Loaded:
    for path in sorted(folder.glob("*.safetensors")):
        yield from load_file(path, device=device).items()


def by_get_tensor(safe_open: Callable[..., Any], folder: Path, device: str) -> Loaded:
    for path in sorted(folder.glob("*.safetensors")):
        with safe_open(path, "pt", device=device) as file:
            for name in file.keys():  # noqa: SIM118 - upstream's has no iterator
                yield name, file.get_tensor(name)


def by_to(safe_open: Callable[..., Any], folder: Path, device: str) -> Loaded:
    for path in sorted(folder.glob("*.safetensors")):
        with safe_open(path, "pt") as file:
            for name in file.keys():  # noqa: SIM118 - upstream's has no iterator
                yield name, file.get_tensor(name).to(device, copy=True)


def by_fastsafetensors(folder: Path, device: str) -> Loaded:
    from fastsafetensors import SafeTensorsFileLoader, SingleGroup

    loader = SafeTensorsFileLoader(SingleGroup(), torch.device(device, 0), nogds=True)
    loader.add_filenames({0: [str(path) for path in sorted(folder.glob("*.safetensors"))]})
    buffer = loader.copy_files_to_device()
    for name in loader.get_keys():
        yield name, buffer.get_tensor(name).clone()
    buffer.close()
    loader.close()


def by_runai(folder: Path, device: str) -> Loaded:
    from runai_model_streamer import SafetensorsStreamer

    with SafetensorsStreamer() as streamer:
        streamer.stream_files([str(path) for path in sorted(folder.glob("*.safetensors"))])
        for name, tensor in streamer.get_tensors():
            yield name, tensor.to(device, copy=True)


def by_instanttensor(folder: Path, device: str) -> Loaded:
    from instanttensor import safe_open

    paths = [str(path) for path in sorted(folder.glob("*.safetensors"))]
    with safe_open(paths, framework="pt", device=torch.device(device, 0)) as file:
        yield from file.tensors()


WAYS: dict[str, Callable[[Path, str], Loaded]] = {
    "stream_checkpoint": lambda folder, device: stream_checkpoint(folder, device=device),
    "install(), load_file": partial(by_load_file, pagestream.safetensors.torch.load_file),
    "install(), get_tensor": partial(by_get_tensor, pagestream.safetensors.safe_open),
    "install(), .to": partial(by_to, pagestream.safetensors.safe_open),
    "safetensors, load_file": partial(by_load_file, safetensors.torch.load_file),
    "safetensors, get_tensor": partial(by_get_tensor, safetensors.safe_open),
    "safetensors, .to": partial(by_to, safetensors.safe_open),
    "fastsafetensors": by_fastsafetensors,
    "runai-model-streamer": by_runai,
    "instanttensor": by_instanttensor,
}
OURS = [way for way in WAYS if way.startswith(("stream", "install"))]
NEEDS = {
    "fastsafetensors": "fastsafetensors",
    "runai-model-streamer": "runai_model_streamer",
    "instanttensor": "instanttensor",
}


def loaded(way: str, folder: Path, device: str, sums: dict[str, int]) -> float:
    """Loads everything and keeps it. Returns the bytes per second. The bytes are summed afterwards."""
    gc.collect()
    synchronize()
    begin = time.perf_counter()
    found = dict(WAYS[way](folder, device))
    synchronize()
    seconds = time.perf_counter() - begin
    for name, tensor in found.items():
        total = int(tensor.view(torch.int16).sum(dtype=torch.int64))
        if sums.setdefault(name, total) != total:
            message = f"{way}: {name} has other bytes"
            raise AssertionError(message)
    nbytes = sum(tensor.nbytes for tensor in found.values())
    del found, tensor
    if HAS_GPU:
        torch.cuda.empty_cache()
    return nbytes / seconds


def busy_ways() -> list[str]:
    """Returns the ways that copy bytes. On the CPU, some ways do not."""
    return [way for way in WAYS if HAS_GPU or not way.endswith(("load_file", "get_tensor"))]


def usable_ways(folder: Path, device: str, sums: dict[str, int], most_seconds: float) -> list[str]:
    """Returns the ways that work here within the time limit. Each has run once."""
    loaded("safetensors, .to", folder, device, sums)
    found = []
    for way in busy_ways():
        if not importlib.util.find_spec(NEEDS.get(way, "torch")):
            print(f"\n{way} is not installed.")
            continue
        begin = time.perf_counter()
        try:
            rate = loaded(way, folder, device, sums) / 1e9
        except Exception as error:
            if way in OURS:
                raise
            print(f"\n{way} fails here: {type(error).__name__}: {error}")
            continue
        if time.perf_counter() - begin > most_seconds and way not in OURS:
            print(f"\n{way}: {rate:.2f} GB/s in one load, and left out")
        else:
            found.append(way)
    return found


def compared(case: str, figures: dict[str, list[float]], limits: dict[str, float]) -> list[Row]:
    """Compares our first way with all rivals, and our other ways with upstream."""
    rivals = dict.fromkeys((way for way in figures if way not in OURS), 1.0) | limits
    rows = [
        Row(
            case,
            OURS[0],
            {way: found for way, found in figures.items() if way not in OURS[1:]},
            "GB/s",
            True,
            {way: goal for way, goal in rivals.items() if goal},
            list(limits),
        )
    ]
    for ours in OURS[1:]:
        stock = ours.replace("install()", "safetensors")
        if ours in figures and stock in figures:
            pair = {ours: figures[ours], stock: figures[stock]}
            rows.append(Row(case, ours, pair, "GB/s", True, {stock: 1.0}))
    return rows


def rates(folder: Path, device: str, rounds: int, cold_rounds: int, most_seconds: float) -> list[Row]:
    sums: dict[str, int] = {}
    ways = usable_ways(folder, device, sums, most_seconds)
    rows = []
    for case, is_cold in (("from the page cache", False), ("cold", True)):
        figures: dict[str, list[float]] = {way: [] for way in ways}
        for turn in range(cold_rounds if is_cold else rounds):
            for way in ways[turn % len(ways) :] + ways[: turn % len(ways)]:
                for path in folder.iterdir() if is_cold else ():
                    evict(path)
                figures[way].append(loaded(way, folder, device, sums) / 1e9)
        limits = {}
        if HAS_GPU:
            figures["pinned copies alone"] = [pinned_rate(64 * MIB, 1.0) / 1e9 for _ in range(rounds)]
            # The disk is the limit for a cold file.
            limits["pinned copies alone"] = 0.0 if is_cold else 0.9
        rows += shown(compared(case, figures, limits))
    return rows


def shown(rows: list[Row]) -> list[Row]:
    """Prints the measurements at once, so that they survive if the program is stopped."""
    print(f"\n{table('so far', rows)}", flush=True)
    return rows


def slow_rates(folder: Path, device: str, rounds: int, program: Path) -> list[Row]:
    """Measures the same rates from a mount that answers each request of at most 128 KiB after 10 ms."""
    rows, sums = [], {}
    # Upstream's ways do not differ here, and runai-model-streamer takes a minute.
    ways = [
        way for way in busy_ways() if way in OURS or way in ("safetensors, load_file", "safetensors, .to")
    ]
    for name, is_direct in (("cached", False), ("direct_io", True)):
        figures: dict[str, list[float]] = {way: [] for way in ways}
        for turn in range(rounds):
            for way in ways[turn % len(ways) :] + ways[: turn % len(ways)]:
                mount = real.slow_fuse(
                    folder,
                    folder.parent / f"{name}-{turn}-{ways.index(way)}",
                    delay_ms=10,
                    request_bytes=128 << 10,
                    direct_io=is_direct,
                    program=program,
                )
                for path in folder.iterdir():
                    evict(path)
                with mount as there:
                    figures[way].append(loaded(way, there.path, device, sums) / 1e9)
        rows += shown(compared(f"FUSE, 10 ms per request, {name}", figures, {}))
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--folder", type=Path, help="for the files; a temporary one by default")
    parser.add_argument("--gib", type=float, default=4, help="size of the checkpoint")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--cold-rounds", type=int, default=5)
    parser.add_argument("--most-seconds", type=float, default=60, help="of a rival that stays")
    parser.add_argument("--slow", type=Path, help="build of the example slow_fuse: from a slow mount, too")
    options = parser.parse_args()
    device, name = "cuda", f"{torch.cuda.get_device_name()}" if HAS_GPU else "no GPU"
    if not HAS_GPU:
        print("There is no GPU here. The CPU takes its place: the rates below say nothing about GPUs.\n")
        device = "cpu"
        copy_device.staged_for = lambda _: copy_device.CopyDevice(torch.device("cpu"))
    print(f"{name}, torch {torch.__version__}, {machine()['processor']}\n")
    with tempfile.TemporaryDirectory(dir=options.folder) as inner:
        folder = Path(inner)
        verify(folder, device)
        rows = rates(
            checkpoint(folder / "checkpoint", options.gib),
            device,
            options.rounds,
            options.cold_rounds,
            options.most_seconds,
        )
        if options.slow:
            slow = checkpoint(folder / "slow", 0.4)
            rows += slow_rates(slow, device, max(1, options.rounds // 2), options.slow.resolve())
        print(f"\n{table('a checkpoint in tensors of up to 112 MiB', rows)}")
        best = statistics.median(rows[0].figures["stream_checkpoint"])
        print(f"{options.gib:g} GiB at {best:.2f} GB/s from the page cache.")


if __name__ == "__main__":
    main()

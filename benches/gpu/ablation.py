"""The benefit of the parts of the path to a GPU: staging populated by threads, its size, and pieces.

    python benches/gpu/ablation.py [--folder DIR] [--gib 3] [--rounds 5]

Prints Markdown. Without a GPU, it uses the CPU in its place, to check that the program runs.
"""

import argparse
import contextlib
import gc
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any
from unittest import mock

import torch
from batches import token_file, waits
from weights import HAS_GPU, MIB, PLACE, by_get_tensor, checkpoint, synchronize

import pagestream.safetensors.torch
from pagestream.devices import copy_device, device_tensors, pinned
from pagestream.devices.pinned import PinnedMemory
from pagestream.torch import stream_checkpoint

Variants = dict[str, Callable[[], float]]


def alternate(title: str, unit: str, variants: Variants, rounds: int) -> None:
    found: dict[str, list[float]] = {name: [] for name in variants}
    for _ in range(rounds):
        for name, call in variants.items():
            found[name].append(call())
    for name, values in found.items():
        span = f"{min(values):.2f} to {max(values):.2f}"
        print(f"| {title} | {name} | {statistics.median(values):.2f} {unit} | {span} |", flush=True)


def unpopulated() -> contextlib.AbstractContextManager[Any]:
    return mock.patch.object(pinned._native, "populate", return_value=None)


def pin_milliseconds(nbytes: int, threads: int) -> float:
    memory = PinnedMemory(copy_device.CopyDevice(torch.device(PLACE)))
    begin = time.perf_counter()
    memory.pin(nbytes, threads)
    seconds = time.perf_counter() - begin
    memory.close()
    return seconds * 1e3


def rate(tensors: Iterator[tuple[str, torch.Tensor]]) -> float:
    """Returns the rate of a load that keeps all tensors, in GB per second."""
    gc.collect()
    synchronize()
    begin = time.perf_counter()
    kept = dict(tensors)
    synchronize()
    seconds = time.perf_counter() - begin
    nbytes = sum(tensor.nbytes for tensor in kept.values())
    del kept
    if HAS_GPU:
        torch.cuda.empty_cache()
    return nbytes / seconds / 1e9


def streams(folder: Path, rounds: int) -> None:
    def plain() -> float:
        return rate(stream_checkpoint(folder, device=PLACE))

    def sized(nbytes: int) -> float:
        return rate(stream_checkpoint(folder, device=PLACE, memory_bytes=nbytes))

    def without() -> float:
        with unpopulated():
            return plain()

    def unpopulated_pin() -> float:
        with unpopulated():
            return pin_milliseconds(128 * MIB, 1)

    variants = {
        "populated by threads": lambda: pin_milliseconds(128 * MIB, 16),
        "by the driver": unpopulated_pin,
    }
    alternate("128 MiB page-locked", "ms", variants, rounds)
    plain()
    alternate("stream", "GB/s", {"populated by threads": plain, "by the driver": without}, rounds)
    sizes = {
        f"{size} MiB": lambda size=size: rate(
            stream_checkpoint(folder, device=PLACE, memory_bytes=size * MIB)
        )
        for size in (32, 64, 128, 256)
    }
    alternate("stream, staging", "GB/s", sizes, rounds)

    def pieces(size: int) -> float:
        with mock.patch.object(device_tensors, "PIECE_BYTES", size * MIB):
            return rate(by_get_tensor(pagestream.safetensors.safe_open, folder, PLACE))

    sizes = {f"{size} MiB": partial(pieces, size) for size in (4, 16, 64)}
    alternate("get_tensor, pieces", "GB/s", sizes, max(1, rounds // 2))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--folder", type=Path, help="for the files; a temporary one by default")
    parser.add_argument("--gib", type=float, default=3, help="size of the checkpoint")
    parser.add_argument("--rounds", type=int, default=5)
    options = parser.parse_args()
    print(f"{torch.cuda.get_device_name() if HAS_GPU else 'no GPU'}, torch {torch.__version__}\n")
    print("| case | variant | median | span |\n|---|---|---|---|")
    with tempfile.TemporaryDirectory(dir=options.folder) as inner:
        folder = Path(inner)
        streams(checkpoint(folder / "checkpoint", options.gib), options.rounds)
        if HAS_GPU:
            path = token_file(folder, 0.5)
            step, usual, worst, longest = waits(path, 8, 1024, 100)
            print(f"\nA step of {step:.1f} ms; next: median {usual:.3f} ms, 99th percentile {worst:.3f} ms,")
            print(f"longest {longest:.3f} ms")


if __name__ == "__main__":
    main()

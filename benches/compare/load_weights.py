"""Loads all tensors of the safetensors files of a folder to CPU memory in one way, and prints the costs.

    load_weights.py WAY FOLDER [--evict] [--wait]

With --wait, it prints "ready" and starts when it receives a line. With --evict, it first reads all files of
the folder and evicts them, so that their memory is present, as with `cold.touch_memory`.

Prints JSON: total seconds, seconds to the first tensor, processor seconds, and a sum over all bytes by name.
"""

import contextlib
import json
import os
import sys
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from cold import evict, read_all, touch_memory

# The descriptor for the program's output.
PRINTED = 1
# Yields names with arrays or tensors.
Loaded = Iterator[tuple[str, object]]


def shards(folder: Path) -> list[Path]:
    return sorted(folder.glob("*.safetensors"))


def stream(folder: Path, **options: Any) -> Loaded:
    from pagestream import open_checkpoint

    yield from open_checkpoint(folder).stream(**options)


def by_safe_open(folder: Path, **options: str) -> Loaded:
    import safetensors

    for path in shards(folder):
        with safetensors.safe_open(path, "pt", **options) as file:
            for name in file.keys():  # noqa: SIM118 - upstream's has no iterator
                yield name, file.get_tensor(name)


def by_load_file(folder: Path) -> Loaded:
    import safetensors.torch

    for path in shards(folder):
        yield from safetensors.torch.load_file(path).items()


def installed(way: Callable[..., Loaded], **options: bool) -> Callable[..., Loaded]:
    def load(*arguments: object) -> Loaded:
        import pagestream.safetensors

        pagestream.safetensors.install(**options)
        yield from way(*arguments)

    return load


def by_cattensors(folder: Path) -> Loaded:
    import cattensors

    cattensors.patch()
    # cattensors' `load_file` (0.2.0) fails with safetensors 0.8, which passes a `backend` to `safe_open`.
    yield from by_safe_open(folder)


def by_runai(folder: Path, strategy: str | None = None) -> Loaded:
    if strategy is not None:
        os.environ["RUNAI_STREAMER_FS_STRATEGY"] = strategy
    from runai_model_streamer import SafetensorsStreamer

    with SafetensorsStreamer() as streamer:
        streamer.stream_files([str(path) for path in shards(folder)])
        yield from streamer.get_tensors()


def by_fastsafetensors(folder: Path) -> Loaded:
    from fastsafetensors import SafeTensorsFileLoader, SingleGroup

    loader = SafeTensorsFileLoader(SingleGroup(), torch.device("cpu"), nogds=True)
    loader.add_filenames({0: [str(path) for path in shards(folder)]})
    buffer = loader.copy_files_to_device()
    for name in loader.get_keys():
        yield name, buffer.get_tensor(name)
    buffer.close()
    loader.close()


def by_torch_load(folder: Path) -> Loaded:
    for path in sorted(folder.glob("*.pt")):
        yield from torch.load(path, mmap=True, weights_only=True).items()


WAYS: dict[str, Callable[[Path], Loaded]] = {
    "stream": stream,
    "stream, pread": partial(stream, strategy="pread"),
    "stream, direct": partial(stream, strategy="direct"),
    "stream, 4 threads": partial(stream, threads=4),
    "stream, 64 threads": partial(stream, threads=64),
    "safe_open, installed": installed(by_safe_open),
    "load_file, installed": installed(by_load_file),
    "safe_open, installed, ahead=False": installed(by_safe_open, ahead=False),
    "load_file, installed, ahead=False": installed(by_load_file, ahead=False),
    "safetensors, mmap": by_safe_open,
    "safetensors, pread": lambda folder: by_safe_open(folder, backend="pread"),
    "safetensors, load_file": by_load_file,
    "runai-model-streamer": by_runai,
    # The default reads with O_DIRECT, and on FUSE its requests then wait for one another.
    "runai-model-streamer, io_uring_buffered": partial(by_runai, strategy="io_uring_buffered"),
    "fastsafetensors": by_fastsafetensors,
    "cattensors": by_cattensors,
    "torch.load(mmap=True)": by_torch_load,
}


def used(tensor: object) -> int:
    """Reads all bytes of a tensor, as a copy to a device would."""
    array = tensor if isinstance(tensor, np.ndarray) else tensor.view(torch.uint16).numpy()  # type: ignore[attr-defined]
    return int(np.ascontiguousarray(array).reshape(-1).view(np.uint64).sum(dtype=np.uint64))


def read_and_evict(folder: Path) -> None:
    for path in read_all(folder):
        evict(path)


def report(
    load: Callable[[Path], Loaded], folder: Path, *, evicts: bool = False, waits: bool = False
) -> None:
    """Loads from the folder, and prints the costs."""
    # Importing the libraries is not part of the comparison.
    with contextlib.redirect_stdout(sys.stderr):
        empty = folder / "nothing"
        with contextlib.suppress(Exception):
            list(load(empty))
        os.sync()
        if evicts:
            read_and_evict(folder)
        touch_memory()
        if waits:
            os.write(PRINTED, b"ready\n")
            sys.stdin.readline()
        begun, begun_cpu = time.perf_counter(), time.process_time()
        first, sums = 0.0, {}
        for name, tensor in load(folder):
            sums[name] = used(tensor)
            first = first or time.perf_counter() - begun
        seconds, cpu_seconds = time.perf_counter() - begun, time.process_time() - begun_cpu
    found = {"seconds": seconds, "first_seconds": first, "cpu_seconds": cpu_seconds, "sums": sums}
    print(json.dumps(found), flush=True)


if __name__ == "__main__":
    report(WAYS[sys.argv[1]], Path(sys.argv[2]), evicts="--evict" in sys.argv, waits="--wait" in sys.argv)

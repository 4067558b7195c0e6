"""Loads a checkpoint over NFS in several ways, cold each time. Runs in the guest of `support/nfs_guest.py`.

Writes a line of JSON for each load to /mnt/out/results: case, way, seconds, mean requests in flight.
"""

import json
import os
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import safetensors
import safetensors.numpy
import torch

import pagestream.safetensors
from pagestream import open_checkpoint

from support.nfs_checks import read_counts

SHARDS, TENSORS, TENSOR_BYTES = 2, 16, 2 << 20
ROUNDS = 3
SERVED = Path("/mnt/srv/model")
MOUNTS = {"v3": Path("/mnt/v3"), "v4.2": Path("/mnt/v4")}
# The additional round-trip times. Without them, only the emulated processor would be measured.
ROUND_TRIPS_MS = (0, 5, 20)

Loaded = Iterator[tuple[str, object]]


def stream(folder: Path) -> Loaded:
    yield from open_checkpoint(folder).stream()


def by_safe_open(framework: str) -> Callable[[Path], Loaded]:
    def load(folder: Path) -> Loaded:
        for path in sorted(folder.iterdir()):
            with safetensors.safe_open(path, framework) as file:
                for name in file.keys():  # noqa: SIM118 - upstream's has no iterator
                    yield name, file.get_tensor(name)

    return load


@dataclass(frozen=True)
class Way:
    """A way to load, with a program that has or has not called `install`."""

    load: Callable[[Path], Loaded]
    installs: bool = False

    def ready(self) -> AbstractContextManager[object]:
        """Pays a program's one-time costs. After the fork, this includes copies of pages of every module."""
        return pagestream.safetensors.install() if self.installs else nullcontext()


WAYS = {
    "stream": Way(stream),
    "safe_open, installed, np": Way(by_safe_open("np"), installs=True),
    "safe_open, installed, pt": Way(by_safe_open("pt"), installs=True),
    "safetensors, np": Way(by_safe_open("np")),
    "safetensors, pt": Way(by_safe_open("pt")),
}


def make() -> dict[str, int]:
    """Writes the checkpoint, and returns the sum of each tensor."""
    SERVED.mkdir()
    generator, sums = np.random.default_rng(0), {}
    for shard in range(SHARDS):
        names = [f"layers.{shard * TENSORS + number:02}" for number in range(TENSORS)]
        tensors = {name: np.frombuffer(generator.bytes(TENSOR_BYTES), "u1") for name in names}
        sums |= {name: used(array) for name, array in tensors.items()}
        safetensors.numpy.save_file(tensors, SERVED / f"model-{shard}.safetensors")
    return sums


def used(tensor: object) -> int:
    """Reads all bytes of a tensor, as a copy to a device would."""
    array = tensor.numpy() if isinstance(tensor, torch.Tensor) else np.asarray(tensor)
    return int(array.view(np.uint64).sum(dtype=np.uint64))


def load(way: str, mount: Path, sums: dict[str, int]) -> tuple[float, float]:
    """Loads in a separate process. Returns the seconds, and the mean number of requests in flight."""
    Path("/proc/sys/vm/drop_caches").write_text("1")
    # This brings the libraries' pages back first.
    with WAYS[way].ready():
        list(WAYS[way].load(Path("/mnt/srv/warm")))
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        with WAYS[way].ready():
            (_, before), begun = read_counts(mount), time.perf_counter()
            found = {name: used(tensor) for name, tensor in WAYS[way].load(mount / SERVED.name)}
            seconds = time.perf_counter() - begun
        waited = read_counts(mount)[1] - before
        os.write(writing, json.dumps([seconds, waited / seconds / 1e3, found == sums]).encode())
        os._exit(0)
    os.close(writing)
    with os.fdopen(reading, "rb") as pipe:
        text = pipe.read()
    os.waitpid(child, 0)
    seconds, in_flight, is_right = json.loads(text)
    if not is_right:
        message = f"{way} gave other bytes"
        raise AssertionError(message)
    return seconds, in_flight


def main() -> None:
    sums = make()
    warm = Path("/mnt/srv/warm")
    warm.mkdir()
    safetensors.numpy.save_file({"t": np.zeros(64, "u1")}, warm / "model.safetensors")
    with Path("/mnt/out/results").open("w") as results:
        for milliseconds in ROUND_TRIPS_MS:
            # Each direction takes half of the delay.
            delay = ["qdisc", "replace", "dev", "lo", "root", "netem", "delay", f"{milliseconds / 2}ms"]
            subprocess.run(["tc", *delay, "limit", "100000"], check=True)
            for word, mount in MOUNTS.items():
                for turn in range(ROUNDS):
                    names = list(WAYS)
                    for way in names[turn % len(names) :] + names[: turn % len(names)]:
                        seconds, in_flight = load(way, mount, sums)
                        case = f"{milliseconds} ms, version {word}"
                        found = {"case": case, "way": way, "seconds": seconds, "in_flight": in_flight}
                        print(json.dumps(found), file=results, flush=True)


if __name__ == "__main__":
    main()

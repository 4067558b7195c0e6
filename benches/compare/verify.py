"""Verifying a checkpoint, compared with the rates of the processor, of memory, and of `sha256sum`."""

import hashlib
import os
import subprocess
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path

import numpy as np
import safetensors.numpy
import xxhash
from cold import evict
from harness import Row, compare

import pagestream

TITLE = "verifying a checkpoint of 1 GiB in 4 shards"
SHARDS, TENSORS, TENSOR_BYTES = 4, 8, 32 << 20
PIECE_BYTES = 512 << 10
ROUNDS = 7
CORES = os.cpu_count() or 1


def make(folder: Path) -> tuple[list[Path], list[Path]]:
    """Writes the shards with their checksums, and links to them in the layout of the Hugging Face cache."""
    folder.mkdir()
    blobs = folder / "blobs"
    blobs.mkdir()
    generator = np.random.default_rng(0)
    shards, named = [], []
    for shard in range(SHARDS):
        tensors = {
            f"layer.{shard}.{number}": generator.integers(0, 256, TENSOR_BYTES, "u1")
            for number in range(TENSORS)
        }
        path = folder / f"model-{shard + 1:05}-of-{SHARDS:05}.safetensors"
        safetensors.numpy.save_file(tensors, path)
        with path.open("rb") as file:
            blob = blobs / hashlib.file_digest(file, "sha256").hexdigest()
        os.link(path, blob)
        shards.append(path)
        named.append(blob)
    pagestream.open_checkpoint(shards).write_checksums()
    return shards, named


def verify(paths: list[Path]) -> None:
    with pagestream.open_checkpoint(paths) as weights:
        report = weights.verify()
    assert len(report.checked) == len(paths)
    assert report.bad == ()


def stream(paths: list[Path], *, checks: bool) -> None:
    with pagestream.open_checkpoint(paths) as weights:
        for _ in weights.stream(strategy="pread", verify=checks):
            pass


def by_each_core(call: Callable[[Path], object], paths: list[Path]) -> None:
    with ThreadPoolExecutor(CORES) as pool:
        list(pool.map(call, paths))


def read(path: Path) -> None:
    """Reads a file and uses none of its bytes."""
    buffer = bytearray(PIECE_BYTES)
    with path.open("rb", buffering=0) as file:
        while file.readinto(buffer):
            pass


def hash_memory(new: Callable[[], object], path: Path) -> None:
    """Hashes as many bytes as the file has, but always the same ones, which stay in the core's cache."""
    piece, done = bytearray(PIECE_BYTES), new()
    for _ in range(path.stat().st_size // PIECE_BYTES):
        done.update(piece)  # type: ignore[attr-defined]


def sha256sum(paths: list[Path]) -> None:
    command = ["xargs", "-0", "-n1", f"-P{CORES}", "sha256sum"]
    subprocess.run(command, input="\0".join(map(str, paths)), text=True, check=True, capture_output=True)


def cold(call: Callable[[], None], paths: list[Path]) -> Callable[[], None]:
    def evicted() -> None:
        for path in paths:
            evict(path)
        call()

    return evicted


def measure(folder: Path) -> list[Row]:
    shards, named = make(folder / "verify")
    each = partial(compare, rounds=ROUNDS)
    memory = f"reads alone, {CORES} threads"
    core = f"the processor alone, {CORES} threads"
    rows = [
        each(
            "xxh3 beside the files, page cache warm",
            {
                "verify": partial(verify, shards),
                memory: partial(by_each_core, read, shards),
                core: partial(by_each_core, partial(hash_memory, xxhash.xxh3_128), shards),
                "sha256sum": partial(sha256sum, shards),
            },
            goals={"sha256sum": 4},
            limits=[memory, core],
        ),
        each(
            "sha256 in the names, page cache warm",
            {
                "verify": partial(verify, named),
                memory: partial(by_each_core, read, named),
                core: partial(by_each_core, partial(hash_memory, hashlib.sha256), named),
                "sha256sum": partial(sha256sum, named),
            },
            goals={core: 0.9, "sha256sum": 3},
            limits=[memory, core],
        ),
        each(
            "one file, xxh3, page cache warm",
            {"verify": partial(verify, shards[:1]), "reads alone, one thread": partial(read, shards[0])},
            limits=["reads alone, one thread"],
        ),
        each(
            "one file, sha256, page cache warm",
            {
                "verify": partial(verify, named[:1]),
                "the processor alone, one thread": partial(hash_memory, hashlib.sha256, named[0]),
            },
            goals={"the processor alone, one thread": 0.9},
            limits=["the processor alone, one thread"],
        ),
        each(
            "stream(verify=True), page cache warm",
            {
                "stream(verify=True)": partial(stream, shards, checks=True),
                "stream": partial(stream, shards, checks=False),
            },
            limits=["stream"],
        ),
    ]
    rows.append(
        compare(
            "xxh3 beside the files, cold disk",
            {
                "verify": cold(partial(verify, shards), shards),
                "stream": cold(partial(stream, shards, checks=False), shards),
            },
            rounds=3,
            goals={"stream": 0.9},
            limits=["stream"],
        )
    )
    return rows

"""Whole checkpoints from slow mounts, cold, to CPU memory: every tensor loaded and each of its bytes used."""

import json
import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np
import safetensors.torch
import torch
from cold import ROOT, evict, example
from harness import Row

sys.path.append(str(ROOT / "tests/python"))  # the tests mount the same file system
from support import real

TITLE = "whole checkpoints of 4 shards from a FUSE mount, cold, to CPU memory"
SHARDS, TENSORS, SIDE = 4, 32, 2048
ROUNDS = 3
OURS = ["stream", "safe_open, installed", "load_file, installed"]
STOCK = ["safetensors, mmap", "safetensors, pread", "safetensors, load_file"]
RIVALS = ["runai-model-streamer", "fastsafetensors", "torch.load(mmap=True)"]
# Delay of a request of at most 128 KiB, in ms; the goal against the better way of safetensors.
DELAYS = {10: 10.0, 2: 5.0}


def make(folder: Path) -> dict[str, int]:
    """Writes 1 GiB of tensors, as safetensors and as torch's own files. Returns the sum of each."""
    folder.mkdir()
    generator, sums = np.random.default_rng(0), {}
    for shard in range(SHARDS):
        tensors = {}
        for number in range(TENSORS):
            name = f"model.layers.{shard * TENSORS + number}.weight"
            array = generator.integers(0, 1 << 16, (SIDE, SIDE), dtype=np.uint16)
            sums[name] = int(array.reshape(-1).view(np.uint64).sum(dtype=np.uint64))
            tensors[name] = torch.from_numpy(array).view(torch.bfloat16)
        stem = folder / f"model-{shard + 1:05}-of-{SHARDS:05}"
        safetensors.torch.save_file(tensors, stem.with_suffix(".safetensors"))
        torch.save(tensors, stem.with_suffix(".pt"))
    return sums


def load(way: str, folder: Path, source: Path, sums: dict[str, int]) -> tuple[float, float]:
    """Loads in a new process, cold on both sides of the mount. Returns seconds, and those to the first."""
    for place in (folder, source):
        for path in place.iterdir():
            evict(path)
    program = Path(__file__).with_name("load_weights.py")
    command = [sys.executable, str(program), way, str(folder)]
    done = subprocess.run(command, check=False, capture_output=True, text=True)
    if done.returncode:
        message = f"{way}: {done.stderr[-2000:]}"
        raise RuntimeError(message)
    found = json.loads(done.stdout.splitlines()[-1])
    if found["sums"] != sums:
        message = f"{way} gave other bytes"
        raise AssertionError(message)
    return found["seconds"], found["first_seconds"]


def measure(folder: Path) -> list[Row]:
    rows = []
    with tempfile.TemporaryDirectory(dir=folder) as inner:
        source = Path(inner) / "source"
        sums = make(source)
        for delay_ms, goal in DELAYS.items():
            for direct in (False, True):
                point = Path(inner) / f"slow{delay_ms}{direct}"
                case = f"{delay_ms} ms a request, {'direct_io' if direct else 'cached'}"
                with real.slow_fuse(
                    source, point, delay_ms=delay_ms, direct_io=direct, program=example("slow_fuse")
                ) as slow:
                    rows += of_mount(case, goal, slow.path, source, sums)
    return rows


def of_mount(case: str, goal: float, mount: Path, source: Path, sums: dict[str, int]) -> list[Row]:
    names = [*OURS, *STOCK, *RIVALS]
    seconds: dict[str, list[float]] = {name: [] for name in names}
    firsts: dict[str, list[float]] = {name: [] for name in names}
    for turn in range(ROUNDS):
        for name in names[turn % len(names) :] + names[: turn % len(names)]:
            whole, first = load(name, mount, source, sums)
            seconds[name].append(whole)
            firsts[name].append(first)
    rows = []
    for ours in OURS:
        rivals = [*STOCK, *RIVALS] if ours == "stream" else [*STOCK, "stream"]
        goals = dict.fromkeys(STOCK, goal) | dict.fromkeys(RIVALS, 1.0) | {"stream": 0.9}
        figures = {name: seconds[name] for name in (ours, *rivals)}
        rows.append(Row(case, ours, figures, goals={name: goals[name] for name in rivals}))
        fastest = min(rivals, key=lambda name: float(np.median(seconds[name])))
        figures = {ours: firsts[ours], f"{fastest}, all": seconds[fastest]}
        rows.append(Row(f"{case}, first tensor", ours, figures, goals={f"{fastest}, all": 10.0}))
    return rows

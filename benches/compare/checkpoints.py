"""Checkpoints with many files, and one file in many processes, compared with `safetensors`."""

import json
import os
import subprocess
import sys
from functools import partial
from pathlib import Path

import numpy as np
import safetensors
import safetensors.numpy
from harness import Row, compare

import pagestream

TITLE = "Checkpoints"
SHARDS, TENSORS = 100, 300
PROCESSES = 8
ROUNDS = 3
NAME = f"model.layers.{SHARDS // 2}.part.7.weight"


def shard_name(number: int) -> str:
    return f"model-{number + 1:05}-of-{SHARDS:05}.safetensors"


def make(folder: Path) -> Path:
    """Writes a checkpoint in transformers' layout. Its tensors are small, because only opening is timed."""
    folder.mkdir()
    generator = np.random.default_rng(0)
    weight_map = {}
    for shard in range(SHARDS):
        names = [f"model.layers.{shard}.part.{part}.weight" for part in range(TENSORS)]
        tensors = {name: generator.standard_normal(64, "f4") for name in names}
        safetensors.numpy.save_file(tensors, folder / shard_name(shard), {"format": "pt"})
        weight_map.update(dict.fromkeys(names, shard_name(shard)))
    index = {"metadata": {"total_size": SHARDS * TENSORS * 256}, "weight_map": weight_map}
    text = json.dumps(index, indent=2, sort_keys=True)
    (folder / "model.safetensors.index.json").write_text(text + "\n")
    return folder


def files_of(folder: Path) -> list[Path]:
    return [folder / shard_name(shard) for shard in range(SHARDS)]


def same(folder: Path) -> None:
    weights = pagestream.open_checkpoint(folder)
    assert len(weights) == SHARDS * TENSORS
    for path in files_of(folder):
        for name, array in safetensors.numpy.load_file(path).items():
            assert np.array_equal(weights[name], array)
    assert np.array_equal(ours(folder), in_a_loop(folder))


def ours(source: Path | list[Path]) -> np.ndarray:
    with pagestream.open_checkpoint(source) as weights:
        return weights[NAME]


def in_a_loop(folder: Path) -> np.ndarray:
    """Opens every file and records the file of each tensor, as programs must that request tensors by name."""
    where = {}
    for path in files_of(folder):
        file = safetensors.safe_open(path, "np")
        where.update(dict.fromkeys(file.keys(), file))
    return where[NAME].get_tensor(NAME)


def in_a_loop_by_index(folder: Path) -> np.ndarray:
    """Trusts the index, and opens every file without a look at its names."""
    index = json.loads((folder / "model.safetensors.index.json").read_bytes())["weight_map"]
    files = {path.name: safetensors.safe_open(path, "np") for path in files_of(folder)}
    return files[index[NAME]].get_tensor(NAME)


# Each process runs this: it opens the file, uses every tensor, and keeps them until all have measured.
_WORKER = """
import sys
import numpy as np
library, path = sys.argv[1:]
def status():
    with open("/proc/self/smaps_rollup") as file:
        lines = dict(line.split(":") for line in list(file)[1:])
    return {key: int(value.split()[0]) << 10 for key, value in lines.items()}
if library == "pagestream":
    import pagestream as _
    before = status()
    import pagestream
    weights = pagestream.open_checkpoint(path)
    tensors = [weights[name] for name in weights]
else:
    import safetensors
    before = status()
    with safetensors.safe_open(path, "np") as file:
        tensors = [file.get_tensor(name) for name in file.keys()]
total = sum(int(tensor.view("u4").sum(dtype="u8")) for tensor in tensors)
print("ready", total, flush=True)
sys.stdin.readline()
after = status()
private = ("Private_Dirty", "Private_Clean")
print(sum(after[key] - before[key] for key in private), after["Pss"] - before["Pss"], flush=True)
sys.stdin.readline()
"""


def extra_memory(library: str, path: Path) -> tuple[float, float]:
    """Returns the memory that processes add when they read every tensor: private bytes, and their share of
    all bytes."""
    environment = {**os.environ, "OPENBLAS_NUM_THREADS": "1"}
    command = [sys.executable, "-c", _WORKER, library, str(path)]
    pipe = subprocess.PIPE
    workers = [
        subprocess.Popen(command, stdin=pipe, stdout=pipe, text=True, env=environment)
        for _ in range(PROCESSES)
    ]
    sums = [worker.stdout.readline() for worker in workers]  # type: ignore[union-attr]
    assert len(set(sums)) == 1
    assert sums[0].startswith("ready")
    figures = []
    for worker in workers:
        worker.stdin.write("\n")  # type: ignore[union-attr]
        worker.stdin.flush()  # type: ignore[union-attr]
        figures.append([int(number) for number in worker.stdout.readline().split()])  # type: ignore[union-attr]
    for worker in workers:
        worker.communicate("\n")
        assert worker.returncode == 0
    private, shares = np.sum(figures, axis=0) / (1 << 20)
    return float(private), float(shares)


def memory(folder: Path) -> list[Row]:
    path = folder / "1 GiB.safetensors"
    generator = np.random.default_rng(0)
    tensors = {
        f"layer.{number}.weight": generator.integers(0, 1 << 32, 1 << 20, "u4").view("f4")
        for number in range(256)
    }
    safetensors.numpy.save_file(tensors, path)
    del tensors
    case = f"{PROCESSES} processes that open the same 1 GiB file and sum each tensor"
    names = ["pagestream", "safetensors"]
    rows = [
        Row(f"{case}: {what}", names[0], {name: [] for name in names}, unit="MiB", goals={"safetensors": 8})
        for what in ("private memory, all together", "shares of all memory (PSS), all together")
    ]
    for turn in range(ROUNDS):
        for name in names if turn % 2 == 0 else reversed(names):
            for row, figure in zip(rows, extra_memory(name, path), strict=True):
                row.figures[name].append(max(figure, 0.01))
    return rows


def measure(folder: Path) -> list[Row]:
    checkpoint = make(folder / "checkpoint")
    same(checkpoint)
    case = f"{SHARDS} files of {TENSORS} tensors, open to the first tensor"
    contestants = {
        "pagestream": partial(ours, checkpoint),
        "safetensors in a loop": partial(in_a_loop, checkpoint),
        "safetensors in a loop, by the index": partial(in_a_loop_by_index, checkpoint),
    }
    rows = [compare(case, contestants, goals={"safetensors in a loop": 4})]
    listed = {"pagestream": partial(ours, files_of(checkpoint)), **dict(list(contestants.items())[1:2])}
    rows.append(compare(f"{case}, without an index", listed, goals={"safetensors in a loop": 4}))
    return rows + memory(folder)

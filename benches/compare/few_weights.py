"""Loads some tensors of the safetensors files of a folder, and prints the costs.

    few_weights.py "PATTERN: WAY" FOLDER

Prints JSON in the form of `load_weights.py`.
"""

import random
import sys
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path

from load_weights import Loaded, by_load_file, installed, report, shards

THREADS = 4
KEPT_LAYERS = 3
FIRST_LAYERS = 8
OWN_EXPERTS = range(8, 16)
# The tensors of a layer in a model's order. The file sorts them by name.
MODULES = ("attn.q", "attn.k", "attn.v", "attn.o", "mlp.gate", "mlp.up", "mlp.down", "norm.in", "norm.post")
# Files used a few neighbouring tensors at a time: the number of tensors, and the groups in order of use.
TINY_TENSORS, SMALL_TENSORS = 30_000, 402
PAIRS = random.Random(0).sample(range(TINY_TENSORS // 2), 400)
TRIPLES = random.Random(0).sample(range(SMALL_TENSORS // 3), 60)
# The row that is used of each tensor of the file, in order of use.
TENSOR_ROWS = 256
ROWS = {
    number: random.Random(number).randrange(TENSOR_ROWS) for number in random.Random(0).sample(range(60), 60)
}


def is_norm(name: str) -> bool:
    return name.endswith(".norm")


def is_of_kept_layer(name: str) -> bool:
    """Returns whether a layer is used: every third one is."""
    return int(name.split(".")[2]) % KEPT_LAYERS == 0


def is_of_first_layers(name: str) -> bool:
    return int(name.split(".")[2]) < FIRST_LAYERS


def is_own_expert(name: str) -> bool:
    """Returns whether an expert belongs to this rank."""
    return int(name.split(".")[4]) in OWN_EXPERTS


def is_of_pair(name: str) -> bool:
    return int(name.split(".")[1]) // 2 in PAIRS


def is_of_triple(name: str) -> bool:
    return int(name.split(".")[1]) // 3 in TRIPLES


def by_modules(folder: Path) -> Loaded:
    import safetensors

    (path,) = shards(folder)
    with safetensors.safe_open(path, "pt") as file:
        names = file.keys()
        layers = sorted({name.split(".")[2] for name in names})
        for name in (f"model.layers.{layer}.{module}" for layer in layers for module in MODULES):
            yield name, file.get_tensor(name)


def by_neighbours(groups: list[int], size: int, folder: Path) -> Loaded:
    import safetensors

    (path,) = shards(folder)
    with safetensors.safe_open(path, "pt") as file:
        for number in (group * size + each for group in groups for each in range(size)):
            yield f"tensors.{number:05}", file.get_tensor(f"tensors.{number:05}")


def by_rows(folder: Path) -> Loaded:
    import safetensors

    (path,) = shards(folder)
    with safetensors.safe_open(path, "np") as file:
        for number, row in ROWS.items():
            name = f"tensors.{number:05}"
            yield name, file.get_slice(name)[row : row + 1]


def chosen(is_wanted: Callable[[str], bool], folder: Path) -> Loaded:
    import safetensors

    for path in shards(folder):
        with safetensors.safe_open(path, "pt") as file:
            for name in filter(is_wanted, file.keys()):
                yield name, file.get_tensor(name)


def by_threads(folder: Path) -> Loaded:
    """Yields all tensors. Each thread opens the file and takes a block of it."""
    import safetensors

    (path,) = shards(folder)
    with safetensors.safe_open(path, "pt") as file:
        names = file.keys()

    def block(number: int) -> list[tuple[str, object]]:
        begin, end = (len(names) * each // THREADS for each in (number, number + 1))
        with safetensors.safe_open(path, "pt") as file:
            return [(name, file.get_tensor(name).clone()) for name in names[begin:end]]

    with ThreadPoolExecutor(THREADS) as threads:
        yield from flat(threads.map(block, range(THREADS)))


def by_numpy(folder: Path) -> Loaded:
    import safetensors.numpy

    for path in shards(folder):
        yield from safetensors.numpy.load_file(path).items()


def flat(lists: Iterator[list[tuple[str, object]]]) -> Loaded:
    return (pair for each in lists for pair in each)


PATTERNS: dict[str, Callable[[Path], Loaded]] = {
    "norms": partial(chosen, is_norm),
    "every third layer": partial(chosen, is_of_kept_layer),
    "first layers": partial(chosen, is_of_first_layers),
    "experts": partial(chosen, is_own_expert),
    "threads": by_threads,
    "modules": by_modules,
    "pairs": partial(by_neighbours, PAIRS, 2),
    "triples": partial(by_neighbours, TRIPLES, 3),
    "rows": by_rows,
    "load_file of torch": by_load_file,
    "load_file of NumPy": by_numpy,
}
WAYS = ("installed", "safetensors", "installed, ahead=False")


if __name__ == "__main__":
    pattern, way = sys.argv[1].split(": ")
    load = PATTERNS[pattern]
    if way != "safetensors":
        load = installed(load, **({"ahead": False} if way == "installed, ahead=False" else {}))
    report(load, Path(sys.argv[2]))

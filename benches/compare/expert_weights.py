"""Loads the rows of each matrix of the safetensors files of a folder one by one, and prints the costs.

    expert_weights.py WAY FOLDER

Prints JSON in the form of `load_weights.py`, with a name for each row. Programs take experts in this way if a
single tensor stacks them.
"""

import sys
from collections.abc import Callable
from pathlib import Path

from load_weights import Loaded, installed, report, shards


def by_get_slice(folder: Path) -> Loaded:
    import safetensors

    for path in shards(folder):
        with safetensors.safe_open(path, "pt") as file:
            for name in file.keys():  # noqa: SIM118 - upstream's has no iterator
                tensor = file.get_slice(name)
                for row in range(tensor.get_shape()[0]):
                    yield f"{name}.{row}", tensor[row]


WAYS: dict[str, Callable[[Path], Loaded]] = {
    "get_slice, installed": installed(by_get_slice),
    "get_slice, installed, ahead=False": installed(by_get_slice, ahead=False),
    "safetensors slices": by_get_slice,
}


if __name__ == "__main__":
    report(WAYS[sys.argv[1]], Path(sys.argv[2]))

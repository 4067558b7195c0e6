"""Reads tensors and opens files with pagestream and with safetensors, in a framework, under callgrind."""

import itertools
import shutil
import sys
from pathlib import Path

import numpy as np
import safetensors
import safetensors.numpy
from counting import count

import pagestream.safetensors

folder, framework = Path(sys.argv[1]), sys.argv[2]


def written(tensors):
    tensor = np.arange(64, dtype="f4").reshape(8, 8)
    path = folder / f"{tensors}.safetensors"
    safetensors.numpy.save_file({f"layers.{number}.weight": tensor for number in range(tensors)}, path)
    return path


def copies(path, number):
    """Yields new copies of a file. The header of a file opened before would not be parsed again."""
    for _ in range(number):
        copy = path.with_stem(f"{path.stem}-{next(numbers)}")
        shutil.copyfile(path, copy)
        yield copy


def open_next(module, paths):
    with module.safe_open(next(paths), framework):
        pass


numbers = itertools.count()
few, many = written(1_000), written(30_000)
for who, module in [("pagestream", pagestream.safetensors), ("reference", safetensors)]:
    with module.safe_open(few, framework) as file:
        count(who, "get_tensor", lambda file=file: file.get_tensor("layers.500.weight"), 100)
    if framework == "np":
        for what, path, times in [("open 1,000 tensors", few, 3), ("open 30,000 tensors", many, 1)]:
            paths = iter(list(copies(path, times + 2)))
            count(who, what, lambda module=module, paths=paths: open_next(module, paths), times)

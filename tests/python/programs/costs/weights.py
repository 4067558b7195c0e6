"""Reads tensors and opens files by pagestream and by safetensors, in a framework, within callgrind."""

import sys
from pathlib import Path

import numpy as np
import safetensors
import safetensors.numpy
from counting import count

import pagestream.safetensors

folder, framework = Path(sys.argv[1]), sys.argv[2]


def write(name, tensors):
    tensor = np.arange(64, dtype="f4").reshape(8, 8)
    path = folder / name
    safetensors.numpy.save_file({f"layers.{number}.weight": tensor for number in range(tensors)}, path)
    return path


def open_next(module, paths):
    with module.safe_open(next(paths), framework):
        pass


few = write("few.safetensors", 1_000)
for who, module in [("pagestream", pagestream.safetensors), ("reference", safetensors)]:
    with module.safe_open(few, framework) as file:
        count(who, "get_tensor", lambda file=file: file.get_tensor("layers.500.weight"), 100)
    if framework == "np":
        for what, tensors, times in [("open 1,000 tensors", 1_000, 3), ("open 30,000 tensors", 30_000, 1)]:
            # A file that was opened before is not parsed again.
            paths = iter([write(f"{who}-{tensors}-{number}", tensors) for number in range(times + 2)])
            count(who, what, lambda module=module, paths=paths: open_next(module, paths), times)

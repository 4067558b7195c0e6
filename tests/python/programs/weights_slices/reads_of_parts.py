"""Reads parts of the matrix, and prints how many calls each of them took."""

import os
import sys

import numpy as np

from pagestream import MappedFile, open_checkpoint


def calls():
    """Returns how many calls of this process have read anything. This one is among them the next time."""
    file = os.open("/proc/self/io", os.O_RDONLY)
    lines = os.read(file, 4096).decode().splitlines()
    os.close(file)
    return next(int(line.split()[1]) for line in lines if line.startswith("syscr:"))


def evict():
    """Cached bytes of a shared mapping are copied, not read."""
    with MappedFile(path) as file:
        file.evict()


path, mode, *indices = sys.argv[1:]
weights = open_checkpoint(path, mmap_mode=mode)
# The first gaps of a mapped file also read the read-ahead setting of its device.
evict()
weights.read("matrix", np.s_[:101:100])
calls()
found = []
for index in indices:
    evict()
    before = calls()
    weights.read("matrix", eval(f"s_[{index}]", {"s_": np.s_}))
    found.append(calls() - before - 1)
print(*found)

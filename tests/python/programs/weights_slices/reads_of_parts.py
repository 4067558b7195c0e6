"""Reads parts of the matrix, and prints the number of calls for each part."""

import os
import sys

import numpy as np

from pagestream import MappedFile, open_checkpoint


def calls():
    """Returns the number of this process's read calls. The next result includes this call."""
    file = os.open("/proc/self/io", os.O_RDONLY)
    lines = os.read(file, 4096).decode().splitlines()
    os.close(file)
    return next(int(line.split()[1]) for line in lines if line.startswith("syscr:"))


def evict():
    """Evicts the file: cached bytes of a shared mapping are copied and not read."""
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

"""Reads parts of the matrix, and prints how many calls each of them took."""

import os
import sys
import threading

import numpy as np

from pagestream import MappedFile, open_checkpoint


def calls():
    """Returns how many calls of this process have read anything. This one is among them the next time."""
    file = os.open("/proc/self/io", os.O_RDONLY)
    lines = os.read(file, 4096).decode().splitlines()
    os.close(file)
    return next(int(line.split()[1]) for line in lines if line.startswith("syscr:"))


path, mode, *indices = sys.argv[1:]
weights = open_checkpoint(path, mmap_mode=mode)
# The C library reads how many processors there are when a second thread uses memory.
thread = threading.Thread(target=bytearray, args=(1,))
thread.start()
thread.join()
calls()
found = []
for index in indices:
    # Where a mapping is shared, bytes that are cached are copied out of it.
    with MappedFile(path) as file:
        file.evict()
    before = calls()
    weights.read("matrix", eval(f"s_[{index}]", {"s_": np.s_}))
    found.append(calls() - before - 1)
print(*found)

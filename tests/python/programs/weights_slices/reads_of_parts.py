"""Reads parts of the matrix, and asks for a file between them, which a trace of the calls shows."""

import os
import sys

import numpy as np

from pagestream import open_checkpoint

path, mode, *indices = sys.argv[1:]
weights = open_checkpoint(path, mmap_mode=mode)
for index in indices:
    # In the page cache, whatever other programs do to it: of what is not there more is read at a time.
    with open(path, "rb") as file:
        file.read()
    os.path.lexists("/between")
    weights.read("matrix", eval(f"s_[{index}]", {"s_": np.s_}))

"""Reads parts of the matrix, and asks for a file between them, which a trace of the calls shows."""

import os
import sys

import numpy as np

from pagestream import open_checkpoint

path, mode, *indices = sys.argv[1:]
weights = open_checkpoint(path, mmap_mode=mode)
for index in indices:
    os.path.lexists("/between")
    weights.read("matrix", eval(f"s_[{index}]", {"s_": np.s_}))

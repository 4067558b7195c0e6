"""A mapping of somebody else is not guarded where a mapping of ours lay before."""

import os

import numpy as np
from view import opened, path

f, array = opened()
del array
f.close()
foreign = np.memmap(path, "u8", "r")
os.truncate(path, 4096)
foreign.sum()
print("alive")

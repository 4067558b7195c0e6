"""A foreign mapping is not guarded, even at the address of an earlier mapping of ours."""

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

"""A foreign mapping next to ours is not guarded."""

import os
import sys

import numpy as np

before = np.memmap(sys.argv[3], "u8", "r")
from view import opened

f, array = opened()
after = np.memmap(sys.argv[3], "u8", "r")
choose = {"min": min, "max": max}[sys.argv[4]]
foreign = choose(before, after, key=lambda mapped: mapped.ctypes.data)
ours, theirs = array.ctypes.data, foreign.ctypes.data
assert choose(ours, theirs) == theirs
os.truncate(sys.argv[3], 4096)
foreign.sum()
print("alive")

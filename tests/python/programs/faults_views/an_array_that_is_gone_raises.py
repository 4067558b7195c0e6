"""An array that is freed right after its use raises."""

import os

from view import opened, path, use

f, array = opened()
arrays = [array]
del array
f.close()
os.truncate(path, 4096)
use(lambda: arrays.pop().tobytes())
print("raised")

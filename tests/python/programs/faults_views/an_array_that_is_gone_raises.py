"""An array that is gone when its use is over raises."""

import os

from view import opened, path, use

f, array = opened()
arrays = [array]
del array
f.close()
os.truncate(path, 4096)
use(lambda: arrays.pop().tobytes())
print("raised")

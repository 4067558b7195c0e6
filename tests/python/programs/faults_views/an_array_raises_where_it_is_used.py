"""An array of a truncated file raises once where it is used. From then on, every call on the file raises."""

import os

import numpy as np
from view import opened, path, refused, use

f, array = opened()
os.truncate(path, 4096)
error = use(array.sum)
assert (error.offset, error.length) == (4096, 16777216 - 4096), (error.offset, error.length)
assert "the file of 16777216 bytes was truncated there" in str(error)
assert array[511] == 511 and array[512] == 0
for call in (
    lambda: np.frombuffer(f),
    lambda: f.view(0, 8),
    lambda: memoryview(f),
    f.check,
    lambda: f.read(0, 8),
    lambda: f.read(1 << 20, 8),
):
    refused(call)
array[1 << 20]
array.sum()
for _ in range(100):
    pass
print("once")

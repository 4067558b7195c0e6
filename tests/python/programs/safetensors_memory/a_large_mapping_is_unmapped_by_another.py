"""Another thread unmaps a large mapping."""

import os
import sys
import time

from counting import mappings

from pagestream.safetensors import safe_open

with safe_open(sys.argv[1], "np") as file:
    array = file.get_tensor("t")
assert array[-1] == 0
del array, file
for _ in range(500):
    if not mappings():
        break
    time.sleep(0.01)
print(os.getpid(), mappings())

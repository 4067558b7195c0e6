"""Opens a file twice with a pause that settles it, calls access(2) as a mark, and opens it ten more times.

opened_again.py PATH WAY SECONDS
"""

import os
import sys
import time

from pagestream import open_checkpoint
from pagestream.safetensors import safe_open

path, way, seconds = sys.argv[1:]


def total():
    if way == "checkpoint":
        with open_checkpoint(path) as weights:
            return int(weights["a"].sum())
    with safe_open(path, way) as file:
        return int(file.get_tensor("a").sum())


total()
time.sleep(float(seconds))
total()
os.access(path, os.R_OK)
found = {total() for _ in range(10)}
print(*found)

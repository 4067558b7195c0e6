"""Opens a large file, lists its names and closes it."""

import os
import sys

from pagestream.safetensors import safe_open

with safe_open(sys.argv[1], "np") as file:
    names = list(file.keys())
print(os.getpid(), len(names))

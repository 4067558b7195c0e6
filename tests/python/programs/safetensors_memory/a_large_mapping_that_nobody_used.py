"""A large file is opened, its names are listed, and it is closed."""

import os
import sys

from pagestream.safetensors import safe_open

with safe_open(sys.argv[1], "np") as file:
    names = list(file.keys())
print(os.getpid(), len(names))

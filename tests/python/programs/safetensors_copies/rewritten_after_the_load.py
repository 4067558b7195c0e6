"""Loads the tensor "a" for a framework, rewrites the file in place, and prints whether the values are
unchanged.

Usage: rewritten_after_the_load.py FILE {jax,tensorflow,mlx,paddle}
"""

import os
import sys
from importlib import import_module

import numpy as np

from pagestream.safetensors.numpy import load_file

path, framework = sys.argv[1:]
before = load_file(path, copy=True)["a"]
module = import_module(f"pagestream.safetensors.{'flax' if framework == 'jax' else framework}")
loaded = module.load_file(path)["a"]
with open(path, "r+b") as file:
    file.write(b"\xff" * os.path.getsize(path))
print(np.array_equal(np.asarray(loaded), before))

"""Writing imports no torch."""

import sys

import numpy as np

from pagestream.safetensors.numpy import load_file, save_file

save_file({"a": np.arange(3)}, sys.argv[1])
print(load_file(sys.argv[1])["a"], "torch" in sys.modules)

"""A forked child continues to slice tensors."""

import os
import sys

import numpy as np

from pagestream.safetensors import safe_open

part = safe_open(sys.argv[1], "np").get_slice("matrix")
expected = part[:, 1]
child = os.fork()
assert np.array_equal(part[:, 1], expected)
if child:
    assert os.waitpid(child, 0)[1] == 0
    print("both")

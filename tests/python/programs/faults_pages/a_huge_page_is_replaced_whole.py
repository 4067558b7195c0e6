"""A failing huge page is replaced whole."""

import os
import sys

import numpy as np
from damaged import path, used

from pagestream import MappedFile

f = MappedFile(path, mode=sys.argv[2])
array = np.frombuffer(f, "u1")
huge = f.size // 8
assert array[:huge].sum() == 0
os.truncate(path, 4 * huge)
error = used(lambda: array[5 * huge + 12345])
print(error.offset == 4 * huge, int(array[-1]), int(array[4 * huge]))

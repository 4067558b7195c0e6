"""A truncated file costs few mappings for a user who may not query residency."""

import os
import sys

import numpy as np
import numpy.random
from view import opened, path, use

writer = int(sys.argv[3])
os.setgroups([])
os.setgid(65534)
os.setuid(65534)  # this user may not read Python's own files
f, array = opened()


def mappings():
    return sum(line.split()[4] == "0" or path in line for line in open("/proc/self/maps"))


pages = np.random.default_rng(0).permutation(np.arange(0, array.size, 512))
before = mappings()
os.ftruncate(writer, 4096)
use(lambda: int(array[pages].sum()))
assert not array[512:].any()
print(mappings() - before)

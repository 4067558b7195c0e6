"""A truncated file costs one mapping, in whatever order its pages are used."""

import os
import sys

import numpy as np
from view import opened, path, use


def mappings():
    return sum(line.split()[4] == "0" or "sparse" in line for line in open("/proc/self/maps"))


f, array = opened()
generator = np.random.default_rng(0)
pages = np.arange(0, array.size, 512)[::130]
ORDERS = {
    "forwards": lambda: pages,
    "backwards": lambda: pages[::-1],
    "random": lambda: generator.permutation(pages),
}
order = ORDERS[sys.argv[3]]()
before = mappings()
os.truncate(path, 5000 * 4096)
error = use(lambda: sum(int(array[place]) for place in order))
assert error.offset == 5000 * 4096 and error.length == (1 << 30) - 5000 * 4096, (error.offset, error.length)
print(mappings() - before)

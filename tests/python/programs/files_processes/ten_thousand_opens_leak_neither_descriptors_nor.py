"""Ten thousand opens leak neither descriptors nor mappings."""

import os
import sys

import numpy as np

from pagestream import MappedFile, StagingBuffer

path = sys.argv[1]


def census():
    maps = open("/proc/self/maps").read().splitlines()
    return len(os.listdir("/proc/self/fd")), sum(path in line for line in maps), len(maps)


def use(turn):
    f = MappedFile(path, mode=("auto", "shared", "private", "read")[turn % 4])
    view, data = f.view(0, 100), f.read(10, 10)
    if turn % 4 != 3:
        array = np.frombuffer(f, "u2")
    if turn % 3 == 0:
        f.close()
    if turn % 5 == 0:
        try:
            f.read(10**9)
        except ValueError:
            pass
    if turn % 100 == 0:
        b = StagingBuffer(4096, shared=turn % 200 == 0)
        b.resize(1 << 16)


for turn in range(100):
    use(turn)
before = census()
for turn in range(10_000):
    use(turn)
after = census()
assert before[:2] == after[:2] == (before[0], 0), (before, after)
assert after[2] <= before[2] + 4, (before, after)


def resident():
    return next(int(line.split()[1]) for line in open("/proc/self/status") if line.startswith("RssAnon"))


grown = -resident()
for turn in range(10_000):
    use(turn)
grown += resident()
assert grown < 2048, grown
print("clean")

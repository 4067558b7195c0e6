"""Memory stays small for any slice."""

import sys

import numpy as np

from pagestream import open_checkpoint


def peak():
    lines = open("/proc/self/status").read().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("VmHWM"))


weights = open_checkpoint(sys.argv[1], mmap_mode="read")
weights.read("t", np.s_[:4, 0])
before = peak()
assert not weights.read("t", np.s_[::-1024, 1 << 12 :: 1 << 14]).any()
assert not weights.read("t", np.s_[:64, ::1024]).any()
assert not weights.read("t", np.s_[5, ::7]).any()
print(peak() - before)

"""Prints the bytes that each slice reads, from the file and from its disk."""

import sys

import numpy as np

from pagestream import MappedFile, open_checkpoint


def counts():
    found = dict(line.split(": ") for line in open("/proc/self/io").read().splitlines())
    return np.array([int(found["rchar"]), int(found["read_bytes"])])


path, mode, cold, *indices = sys.argv[1:]
for index in indices:
    with open_checkpoint(path, mmap_mode=mode) as weights:
        stored = weights.info("matrix")
        if cold == "1":  # this also drops the pages that came with the header
            with MappedFile(path) as file:
                file.evict()
                assert file.residency().fraction == 0
        before = counts()
        idle = counts() - before
        before = counts()
        weights.read("matrix", eval(index))
        after = counts()
        print(*(after - before - idle))

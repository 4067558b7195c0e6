"""Reads a corpus of many files, and prints the most open files, descriptors and mappings."""

import os
import resource
import sys

import numpy as np

from pagestream import open_tokens

limit = int(sys.argv[2])
if limit:
    resource.setrlimit(resource.RLIMIT_NOFILE, (limit, limit))


def maps():
    with open("/proc/self/maps") as file:
        return sum("/shards/" in line for line in file)


def descriptors():
    return len(os.listdir("/proc/self/fd"))


before = descriptors()
corpus = open_tokens(sys.argv[1], mmap_mode=sys.argv[3])
counts = [(corpus._files.open_count, descriptors() - before, maps())]
expected = np.repeat(np.arange(len(corpus.shards)), 3)
assert (corpus[:] == expected).all()
counts.append((corpus._files.open_count, descriptors() - before, maps()))
rng = np.random.default_rng(0)
for start in rng.integers(0, len(corpus) - 7, 3000).tolist():
    assert (corpus.read(start, start + 7) == expected[start : start + 7]).all()
counts.append((corpus._files.open_count, descriptors() - before, maps()))
corpus.check()
assert len(corpus.fingerprint) == 16
counts.append((corpus._files.open_count, descriptors() - before, maps()))
corpus.close()
counts.append((corpus._files.open_count, descriptors() - before, maps()))
print(*(max(column) for column in zip(*counts)), counts[-1])

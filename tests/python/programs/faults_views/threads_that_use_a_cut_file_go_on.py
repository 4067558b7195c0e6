"""Threads that use a truncated file continue, and the main thread gets the error."""

import os
import threading

import numpy as np
from view import opened, path, use

f, array = opened()
done = []


def worker(seed):
    order = np.random.default_rng(seed).permutation(array.size)
    for _ in range(3):
        array[order].sum()
    done.append(seed)


threads = [threading.Thread(target=worker, args=(seed,)) for seed in range(4)]


def work():
    for thread in threads:
        thread.start()
    os.truncate(path, 4096)
    while len(done) < 4:
        pass


use(work)
for thread in threads:
    thread.join()
for _ in range(100):
    pass
print(len(done))

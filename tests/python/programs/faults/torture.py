"""Four threads read a file at random while it is repeatedly truncated to a random size."""

import os
import random
import sys
import threading

import numpy as np

from pagestream import MappedFile
from pagestream.errors import FileChangedError, MappedReadError

path, mode, cuts = sys.argv[1], sys.argv[2], int(sys.argv[3])
whole = np.arange(1 << 17, dtype="u8").tobytes()
raised, good, wrong, stop = [], [], [], threading.Event()


def reader(seed):
    generator = random.Random(seed)
    out = np.empty(1024, "u8")
    while not stop.is_set():
        f = files[0]
        start = generator.randrange((1 << 17) - 1024)
        try:
            f.read_into(out, start * 8)
        except (MappedReadError, FileChangedError) as error:
            assert error.filename == path
            raised.append(type(error).__name__)
        else:
            good.append(1)
            if not np.array_equal(out, np.arange(start, start + 1024, dtype="u8")):
                wrong.append((start, out[out != np.arange(start, start + 1024, dtype="u8")]))


def restore():
    fresh = path + ".new"
    with open(fresh, "wb") as file:
        file.write(whole)
    os.replace(fresh, path)
    files[0] = MappedFile(path, mode=mode)


files = [None]
restore()
threads = [threading.Thread(target=reader, args=(seed,)) for seed in range(4)]
for thread in threads:
    thread.start()
generator = random.Random(7)
for _ in range(cuts):
    begun = len(good)
    while len(good) < begun + 2:
        pass
    before = len(good) + len(raised)
    os.truncate(path, generator.randrange(1 << 20))
    while len(good) + len(raised) < before + 8:
        pass
    restore()
stop.set()
for thread in threads:
    thread.join()
assert not wrong, wrong
assert raised and good, (len(raised), len(good))
print("survived")

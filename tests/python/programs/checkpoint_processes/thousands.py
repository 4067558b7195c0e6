"""Reads a checkpoint of 3000 files under a low limit of descriptors, and notices replaced files."""

import os
import resource
import sys

limit = int(sys.argv[3])
_, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
resource.setrlimit(resource.RLIMIT_NOFILE, (limit, hard))
import pagestream
from pagestream.errors import FileChangedError

weights = pagestream.open_checkpoint(sys.argv[1], mmap_mode=sys.argv[2])
count = len(weights)
assert len(weights.files) == count == 3000
assert len(os.listdir("/proc/self/fd")) <= limit // 4 + 20, len(os.listdir("/proc/self/fd"))
held = []
for step in (1, 977, 1):
    for number in range(0, count * step, step):
        array = weights[f"t{number % count}"]
        assert array[0] == number % count
        held.append(array) if number % 50 == 0 else None
assert len(os.listdir("/proc/self/fd")) <= limit // 4 + 20
weights.check()
# A replaced file that is not open is noticed when it is reopened, and by `check`.
for number in (0, 1500, 2999):
    path = weights.info(f"t{number}").path
    os.replace(path, path + ".old")
    with open(path + ".old", "rb") as old, open(path, "wb") as new:
        new.write(old.read())
try:
    weights.check()
except FileChangedError as error:
    print(error.filename)
noticed = 0
for number in (0, 1500, 2999):
    try:
        weights[f"t{number}"]
    except FileChangedError as error:
        noticed += "no longer the file that was opened" in str(error)
assert noticed >= 2, noticed
weights.close()
assert all(array[0] >= 0 for array in held)

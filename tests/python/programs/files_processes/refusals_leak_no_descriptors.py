"""Refused opens leak no descriptors."""

import os
import sys

from pagestream import MappedFile

os.mkfifo(sys.argv[1] + "/fifo")
before = len(os.listdir("/proc/self/fd"))
for path in ("fifo", ".", "missing"):
    for _ in range(100):
        try:
            MappedFile(f"{sys.argv[1]}/{path}")
        except OSError:
            pass
print(len(os.listdir("/proc/self/fd")) - before)

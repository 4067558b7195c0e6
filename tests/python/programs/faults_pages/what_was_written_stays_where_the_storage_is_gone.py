"""Pages that were written stay in swap where all of the storage is gone."""

import os
import sys

file = os.open(sys.argv[1], os.O_RDONLY)  # first, because each opening drops the file's cached pages

from damaged import used
from swapped import right, x

os.posix_fadvise(file, 0, 0, os.POSIX_FADV_DONTNEED)
print("ready", flush=True)
sys.stdin.readline()
used(x[100].sum)
print(right())

"""Written pages in swap stay if all of the storage is gone."""

import os
import sys

file = os.open(sys.argv[1], os.O_RDONLY)  # must come first: each open drops the file's cached pages

from damaged import used
from swapped import first, is_in_memory, libc, right, x

MADV_DONTNEED = 4
# The pages of x[100] were not written. If a neighbouring fault has mapped them, the page cache keeps them.
while any(map(is_in_memory, (100, 101))):
    assert libc.madvise(first + 100 * 4096, 2 * 4096, MADV_DONTNEED) == 0
    os.posix_fadvise(file, 0, 0, os.POSIX_FADV_DONTNEED)
print("ready", flush=True)
sys.stdin.readline()
used(x[100].sum)
print(right())

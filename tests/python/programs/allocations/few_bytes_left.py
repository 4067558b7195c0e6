"""Streams a file with little address space left, and prints the error.

few_bytes_left.py PATH BYTES
"""

import os
import resource
import sys
from pathlib import Path

import pagestream

path, left = sys.argv[1], int(sys.argv[2])
weights = pagestream.open_checkpoint([path])
pages = int(Path("/proc/self/statm").read_text().split()[0])
limit = pages * os.sysconf("SC_PAGESIZE") + left
resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
try:
    for _ in weights.stream(strategy="pread", memory_bytes=1 << 16):
        pass
except (OSError, MemoryError) as error:
    print(type(error).__name__, error)
else:
    print("done")

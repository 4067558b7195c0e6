"""A failing huge page in a writable mapping is replaced whole."""

import json
import mmap
import os
import struct

from damaged import path, used

from pagestream.safetensors import safe_open

size = os.path.getsize(path)
header = json.dumps({"x": {"dtype": "U8", "shape": [size - 4096], "data_offsets": [0, size - 4096]}}).encode()
head = struct.pack("<Q", 4096 - 8) + header.ljust(4096 - 8)
with open(path, "r+b") as file, mmap.mmap(file.fileno(), size) as mapping:
    mapping[: len(head)] = head  # hugetlbfs does not support write(2)
x = safe_open(path, "np").get_tensor("x")
huge = size // 8
x[3 * huge] = 7
os.truncate(path, 4 * huge)
used(lambda: x[5 * huge])
x[6 * huge] = 1
print(int(x[3 * huge]), int(x[5 * huge]), int(x[6 * huge]))

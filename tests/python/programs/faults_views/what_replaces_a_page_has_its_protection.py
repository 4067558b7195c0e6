"""A replacement page has the protection of the original page."""

import os
import sys

import pagestream
from pagestream.errors import MappedReadError
from pagestream.safetensors import safe_open

path = sys.argv[1]


def protection(array):
    address = array.ctypes.data + array.nbytes - 1
    for line in open("/proc/self/maps"):
        start, end = (int(word, 16) for word in line.split()[0].split("-"))
        if start <= address < end:
            return line.split()[1], "w.safetensors" in line


written, read_only = (
    safe_open(path, "np").get_tensor("x"),
    pagestream.open_checkpoint(path, mmap_mode="shared")["x"],
)
written[:1000] = 7
assert (protection(written), protection(read_only)) == (("rw-p", True), ("r--s", True))
os.truncate(path, 8192)
for array in (written, read_only):
    try:
        array.sum()
        for _ in range(100):
            pass
    except MappedReadError as error:
        assert error.filename == path
    else:
        raise AssertionError("nothing was raised")
assert (protection(written), protection(read_only)) == (("rw-p", False), ("r--p", False))
assert (written[:1000] == 7).all()
written[-1] = 5
assert written[-1] == 5
try:
    read_only[-1] = 5
except ValueError:
    print("read-only")

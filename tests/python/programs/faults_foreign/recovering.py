"""Installs a library's handler before ours and opens a file."""

import ctypes
import sys

# The library's handler is installed before ours, so ours calls it.
library = ctypes.CDLL(sys.argv[1])
library.touch.argtypes = [ctypes.c_size_t]
assert library.prepare(sys.argv[2].encode()) == 0
assert library.install() == 0
from pagestream import MappedFile

f = MappedFile(sys.argv[3])
f.read(0, 8)

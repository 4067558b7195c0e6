"""Using the rest of the last page raises too."""

import ctypes
import os

from view import opened, path, use

f, array = opened()
os.truncate(path, 4096)
error = use(lambda: ctypes.string_at(array.ctypes.data + array.nbytes + 100, 8))
print(error.offset, error.length)

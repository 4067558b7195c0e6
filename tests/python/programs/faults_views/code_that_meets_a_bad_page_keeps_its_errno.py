"""Code that touches an unreadable page keeps its errno."""

import ctypes
import errno
import os

from signals import libc
from view import opened, path, use

f, array = opened()
os.truncate(path, 4096)
kept = []


def look():
    ctypes.set_errno(errno.EDOM)
    try:
        libc.memcmp(ctypes.c_void_p(array.ctypes.data + 8192), bytes(8), ctypes.c_size_t(8))
    finally:
        kept.append(ctypes.get_errno())


use(look)
print(*kept)

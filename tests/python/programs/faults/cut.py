"""Opens the file of the first argument, truncates it and reads past its new end."""

import errno
import mmap
import os
import sys

from pagestream import MappedFile
from pagestream.errors import MappedReadError

path = sys.argv[1]


def opened():
    """Returns the file after a first read."""
    f = MappedFile(path)
    f.read(0, 10)
    return f


def cut_and_read(f):
    os.truncate(path, 4096)
    for _ in range(3):
        try:
            f.read(1 << 20, 100_000)
        except MappedReadError as error:
            assert error.errno == errno.EIO and error.filename == path
            assert (error.offset, error.length) == (1 << 20, 100_000), (error.offset, error.length)
            assert "truncated from 16777216 to 4096 bytes" in str(error)
            print("raised")


def cut_and_touch_a_foreign_mapping():
    foreign = mmap.mmap(os.open(path, os.O_RDONLY), 0, prot=mmap.PROT_READ)
    os.truncate(path, 4096)
    foreign[1 << 20]
    print("alive")

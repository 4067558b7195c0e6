"""Reads of a file that was truncated and grew back with zeros raise."""

import errno
import os
import sys

from cut import opened, path

from pagestream.errors import FileChangedError

f = opened()
os.truncate(path, 0)
os.truncate(path, int(sys.argv[2]))
try:
    f.read(4096, 200)
except FileChangedError as error:
    assert error.errno == errno.ESTALE and error.filename == path
    print("raised")

"""Reads past the end of a truncated file, but within its last page, raise."""

import os

from cut import opened, path

from pagestream.errors import MappedReadError

f = opened()
os.truncate(path, 4096 + 100)
try:
    f.read(4096, 200)
except MappedReadError:
    print("raised")

"""A read of the rest of the page in which a cut file ends raises."""

import os

from cut import opened, path

from pagestream.errors import MappedReadError

f = opened()
os.truncate(path, 4096 + 100)
try:
    f.read(4096, 200)
except MappedReadError:
    print("raised")

"""A tensor of a truncated file raises, whether the file is open or closed."""

import gc
import os
import sys

from ways import WAYS

from pagestream.errors import MappedReadError

path = sys.argv[1]
opener, taker = WAYS[sys.argv[2]]
opened = opener(path)
tensor = taker(opened)
if sys.argv[3] == "closed":
    del opened
    gc.collect()
os.truncate(path, 4096)
try:
    tensor.sum()
    for _ in range(100):
        pass
except MappedReadError as error:
    print(error.filename == path, error.offset)

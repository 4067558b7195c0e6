"""A truncated file hands out no more tensors."""

import os
import sys

from ways import WAYS

from pagestream.errors import MappedReadError, SafetensorError

path, way = sys.argv[1], sys.argv[2]
opener, taker = WAYS[way]
opened = opener(path)
tensor = taker(opened)
os.truncate(path, 4096)
raised = 0
try:
    tensor.sum()
    for _ in range(100):
        pass
except MappedReadError as error:
    raised += 1
try:
    if way == "load_file":
        opener(path)
    else:
        taker(opened)
except (MappedReadError, SafetensorError) as error:
    raised += path in str(error)
print(raised)

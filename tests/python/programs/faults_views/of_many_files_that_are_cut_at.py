"""The exception names a few of many files that are truncated at the same time."""

import os
import sys

import numpy as np

from pagestream import MappedFile
from pagestream.errors import MappedReadError

arrays = []
for number in range(40):
    path = f"{sys.argv[1]}/{number}"
    np.ones(1024, "u8").tofile(path)
    arrays.append(np.frombuffer(MappedFile(path), "u8"))
    os.truncate(path, 4096)
try:
    np.concatenate(arrays)
    for _ in range(100):
        pass
except MappedReadError as error:
    for _ in range(100):
        pass
    print(len(error.__notes__), error.__notes__[-1])

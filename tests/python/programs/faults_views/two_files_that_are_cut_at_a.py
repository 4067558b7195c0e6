"""Two files truncated at the same time raise one exception."""

import os
import sys

import numpy as np

from pagestream import MappedFile
from pagestream.errors import MappedReadError

paths = [f"{sys.argv[1]}/{name}" for name in "ab"]
for path in paths:
    np.ones(1 << 16, "u8").tofile(path)
files = [MappedFile(path) for path in paths]
one, other = (np.frombuffer(f, "u8") for f in files)
for path in paths:
    os.truncate(path, 4096)
try:
    np.add(one, other)
    for _ in range(100):
        pass
except MappedReadError as error:
    for _ in range(100):
        pass  # a second exception would escape from here
    [note] = error.__notes__
    told = [error.filename, note.split(": ")[0]]
    print(sorted(told) == paths, "cannot read 520192 bytes at offset 4096" in note)

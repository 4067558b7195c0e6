"""A file in the slot of a truncated file is reported too."""

import os
import sys

import numpy as np

from pagestream import MappedFile
from pagestream.errors import MappedReadError

for name in "abc":
    path = f"{sys.argv[1]}/{name}"
    np.ones(1 << 16, "u8").tofile(path)
    with MappedFile(path) as f:
        array = np.frombuffer(f, "u8")
        f.check()
        os.truncate(path, 4096)
        try:
            array.sum()
            for _ in range(100):
                pass
        except MappedReadError as error:
            print(error.filename == path)
        del array

"""A fault damages the right one of many mappings."""

import os
import sys

import numpy as np

from pagestream import MappedFile
from pagestream.errors import MappedReadError

files, arrays = [], []
for number in range(700):
    path = f"{sys.argv[1]}/{number}"
    np.full(2048, number, "u8").tofile(path)
    files.append(MappedFile(path))
    arrays.append(np.frombuffer(files[-1], "u8"))
for number in (3, 300, 699):
    os.truncate(files[number].path, 100)
    try:
        arrays[number].sum()
        for _ in range(100):
            pass
    except MappedReadError as error:
        assert error.filename == files[number].path
    else:
        raise AssertionError("nothing was raised")
assert all((array == number).all() for number, array in enumerate(arrays) if number not in (3, 300, 699))
print("right")

"""A large truncated file raises one error, without a walk through its pages."""

import os

import numpy as np
from damaged import path, used

from pagestream import MappedFile

array = np.frombuffer(MappedFile(path), "u1")
os.truncate(path, 4096)
error = used(lambda: array[32 << 30])
print(error.offset, error.length == (64 << 30) - 4096)

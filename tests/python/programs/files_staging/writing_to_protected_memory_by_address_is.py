"""Writes to protected memory by address, which is a segmentation fault."""

import ctypes

import numpy as np

from pagestream import StagingBuffer

b = StagingBuffer(4096)
address = np.frombuffer(b, "u1").ctypes.data
ctypes.memset(address, 1, 4096)
b.protect("read")
print("protected", flush=True)
ctypes.memset(address, 1, 4096)

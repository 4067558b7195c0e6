"""A seal fails while another process maps the buffer, and changes nothing."""

import os

import numpy as np

from pagestream import StagingBuffer
from pagestream.files.staging import _map_descriptor

b = StagingBuffer(4096, shared=True)
np.frombuffer(b, "u1")[:] = 6
other = _map_descriptor(StagingBuffer, type("D", (), {"detach": lambda self: os.dup(b.fileno())})(), 4096)
try:
    b.seal()
except OSError as error:
    print(error.strerror)
np.frombuffer(b, "u1")[0] = 7
print(b.sealed, memoryview(b).readonly, bytes(memoryview(other)[:2]))
del other
b.seal()
print(b.sealed)

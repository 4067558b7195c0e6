"""A seal without a free descriptor fails and changes nothing."""

import errno
import os
import resource

import numpy as np

from pagestream import StagingBuffer

b = StagingBuffer(4096, shared=True)
np.frombuffer(b, "u1")[:] = 3
resource.setrlimit(resource.RLIMIT_NOFILE, (64, 64))
held = []
try:
    while True:
        held.append(os.dup(0))
except OSError:
    pass
try:
    b.seal()
except OSError as error:
    print(errno.errorcode[error.errno], b.sealed, memoryview(b).readonly, bytes(b)[:2])
for descriptor in held:
    os.close(descriptor)
np.frombuffer(b, "u1")[0] = 4
b.seal()
print(b.sealed, bytes(b)[:2])

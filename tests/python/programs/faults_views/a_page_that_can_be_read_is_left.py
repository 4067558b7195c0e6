"""A page that turns out to be readable stays as it is."""

import numpy as np
from signals import ADDRESS_ERROR, send
from view import opened

f, array = opened()
for _ in range(100):
    send(ADDRESS_ERROR, array.ctypes.data + 8192)
assert (array == np.arange(array.size)).all()
f.check()
print(len(np.frombuffer(f, "u8")))

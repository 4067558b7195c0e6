"""Every length and alignment is copied exactly."""

import sys

import numpy as np

from pagestream import MappedFile

content = open(sys.argv[1], "rb").read()
f = MappedFile(sys.argv[1], mode=sys.argv[2])
lengths = [*range(140), *range(250, 262), *range(4090, 4102), 8192, 65_000]
for length in lengths:
    for offset in range(16):
        assert f.read(offset, length) == content[offset : offset + length]
        out = np.full(length + 48, 170, "u1")
        assert f.read_into(out[16 + offset : 16 + offset + length], 3) == length
        assert bytes(out[: 16 + offset]) == b"\xaa" * (16 + offset)
        assert bytes(out[16 + offset : 16 + offset + length]) == content[3 : 3 + length]
        assert bytes(out[16 + offset + length :]) == b"\xaa" * (32 - offset)
print("equal")

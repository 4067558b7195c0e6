"""Reads a hole of a file on a full tmpfs."""

import sys

from pagestream import MappedFile

point = sys.argv[1]
with open(f"{point}/sparse", "wb") as file:
    file.truncate(8 << 20)
with open(f"{point}/fill", "wb", buffering=0) as file:
    try:
        while True:
            file.write(bytes(65536))
    except OSError:
        pass
f = MappedFile(f"{point}/sparse")
assert f.mode == "shared"
assert f.read() == bytes(8 << 20)
print("read")

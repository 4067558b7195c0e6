"""Forks during a lead. Parent and child read all tensors and print how many of them were right."""

import os
import sys

from pagestream.safetensors import safe_open

file = safe_open(sys.argv[1], "np")
names = file.keys()
for name in names[:3]:
    file.get_tensor(name)


def right():
    return sum(int(file.get_tensor(name)[-1]) == number for number, name in enumerate(names))


reading, writing = os.pipe()
child = os.fork()
if child == 0:
    os.write(writing, str(right()).encode())
    os._exit(0)
mine = right()
_, status = os.waitpid(child, 0)
assert status == 0, status
print(os.read(reading, 100).decode(), mine)

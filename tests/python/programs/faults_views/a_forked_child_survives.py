"""A forked child survives a truncated file, and its parent is unaffected."""

import os

from view import opened, path, use

f, array = opened()
os.truncate(path, 4096)
child = os.fork()
if child == 0:
    use(array.sum)
    os._exit(0)
assert os.waitpid(child, 0)[1] == 0
use(array.sum)
print("both")

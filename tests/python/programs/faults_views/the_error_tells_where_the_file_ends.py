"""The error for a truncated file gives its new end."""

import os

from view import opened, path, use

f, array = opened()
os.truncate(path, 4096)
print(f.mode, use(array.sum).offset)

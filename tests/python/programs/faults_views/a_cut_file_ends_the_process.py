"""A truncated file kills the process if the guard is off."""

import os

from view import opened, path

f, array = opened()
os.truncate(path, 4096)
array.sum()
print("alive")

"""The error of a cut file tells where the file ends."""

import os

from view import opened, path, use

f, array = opened()
os.truncate(path, 4096)
print(f.mode, use(array.sum).offset)

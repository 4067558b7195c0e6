"""The next view of a file moves our handler in front of a later one."""

import os
import sys

from handlers import HANDLERS
from view import opened, path, use

f, array = opened()
HANDLERS[sys.argv[3]]()
f.view(0, 8)
os.truncate(path, 4096)
use(array.sum)
print("raised")

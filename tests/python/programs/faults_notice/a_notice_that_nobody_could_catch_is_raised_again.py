"""A notice that no code could catch is raised once more."""

import os
import sys

from callbacks import CALLBACKS
from notice import array, path, raised, unraised

os.truncate(path, 4096)
print(raised(CALLBACKS[sys.argv[2]]), "MappedReadError" in unraised or "RuntimeError" in unraised)
print(raised(array.sum))  # it has reached a caller and is not raised again

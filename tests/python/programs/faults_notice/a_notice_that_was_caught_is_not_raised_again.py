"""Another uncaught exception does not raise a caught notice again."""

import os

from notice import array, path, raised, unraised


class Holder:
    def __del__(self):
        raise KeyError


os.truncate(path, 4096)
first = raised(array.sum)
holder = Holder()
del holder
print(first, raised(array.sum), unraised)

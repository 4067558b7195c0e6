"""A hook for uncaught exceptions receives the same exceptions as before."""

import os

from callbacks import in_a_finaliser
from notice import path, raised, unraised

os.truncate(path, 4096)
assert raised(in_a_finaliser)


class Other:
    def __del__(self):
        raise KeyError


Other()
print(*unraised)

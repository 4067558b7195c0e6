"""A library recovers from faults of its own at each depth of the stack that it is given."""

import sys

from recovering import library

print(all(library.touch(int(depth)) == 1 for depth in sys.argv[4:]))

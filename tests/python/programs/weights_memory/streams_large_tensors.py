"""Streams a checkpoint whose tensors are filled with their numbers, and prints the numbers.

streams_large_tensors.py FOLDER STRATEGY
"""

import sys

from pagestream import open_checkpoint

found = []
for _, array in open_checkpoint(sys.argv[1]).stream(strategy=sys.argv[2]):
    assert array.min() == array.max()
    found.append(array[0])
print(*found)

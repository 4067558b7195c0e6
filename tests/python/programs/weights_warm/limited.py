"""Warms a checkpoint. Prints the bytes read, the bytes in the page cache afterwards, and the handle."""

import sys

from pagestream import MappedFile, open_checkpoint

with open_checkpoint(sys.argv[1]) as weights, MappedFile(sys.argv[1]) as file:
    warming = weights.warm()
    assert warming.wait()
    print(warming.bytes_read, int(file.residency().fraction * file.size), warming)

"""Exits with checkpoints open."""

import sys

import pagestream

weights = pagestream.open_checkpoint(sys.argv[1])
array = weights["layer.1.1"]
print(len(weights))

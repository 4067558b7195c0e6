"""Exits with a loader running."""

import sys

from pagestream import TokenLoader

loader = TokenLoader(sys.argv[1], sequence_length=16, batch_size=4)
kept = next(loader)
print("end")

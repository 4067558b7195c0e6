"""Ctrl-C interrupts a loop, and the loader continues."""

import sys

from pagestream import TokenLoader

loader = TokenLoader(sys.argv[1], sequence_length=16, batch_size=4, epochs=None)
try:
    print("ready", flush=True)
    while True:
        next(loader)
except KeyboardInterrupt:
    print("interrupted", next(loader).x.shape, flush=True)

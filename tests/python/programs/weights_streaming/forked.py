"""Forks during a stream. The child may not use it, and a new stream works."""

import os
import sys

from pagestream import open_checkpoint

weights = open_checkpoint(sys.argv[1])
stream = weights.stream(strategy="pread", memory_bytes=1, threads=2)
next(stream)
child = os.fork()
if child == 0:
    try:
        next(stream)
    except ValueError as error:
        print("told" if "forked" in str(error) else error, flush=True)
    print(len(list(weights.stream(strategy="pread"))), flush=True)
    os._exit(0)
_, status = os.waitpid(child, 0)
assert status == 0, status
assert len(list(stream)) == len(weights) - 1

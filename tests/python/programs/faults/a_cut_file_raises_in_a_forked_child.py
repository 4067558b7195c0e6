"""Reads of a truncated file raise in a forked child."""

import os
import sys

from cut import cut_and_read, opened

f = opened()
child = os.fork()
if child == 0:
    cut_and_read(f)
    sys.stdout.flush()
    os._exit(0)
_, status = os.waitpid(child, 0)
assert status == 0, status

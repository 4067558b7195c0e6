"""A child with its parent's process ID, the first process of another namespace, continues with a loader."""

import ctypes
import faulthandler
import os
import sys

from pagestream import TokenLoader, open_tokens

assert os.getpid() == 1
loader = TokenLoader(open_tokens(sys.argv[1]), sequence_length=64, batch_size=16, epochs=None, threads=2)
next(loader)
CLONE_NEWPID = 0x20000000
assert ctypes.CDLL(None).unshare(CLONE_NEWPID) == 0
child = os.fork()
if child == 0:
    # No other alarm can end the first process of a namespace.
    faulthandler.dump_traceback_later(30, exit=True)
    assert os.getpid() == 1
    for _ in range(20):
        next(loader)
    os._exit(0)
print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))

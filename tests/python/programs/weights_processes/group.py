"""Reads a file ahead and holds it, or opens it, as a user with or without a group.

group.py hold|open PATH USER GROUP
"""

import ctypes
import os
import sys

from pagestream import open_checkpoint

PR_SET_DUMPABLE = 4

role, path, user, group = sys.argv[1:]
os.setgroups([int(group)] if group else [])
os.setgid(int(user))
os.setuid(int(user))
# A program started by this user is dumpable, so the user's other programs may inspect it.
ctypes.CDLL(None).prctl(PR_SET_DUMPABLE, 1, 0, 0, 0)
if role == "hold":
    weights = open_checkpoint(path)
    stream = weights.stream(strategy="pread", memory_bytes=1 << 20)
    next(stream)
    print("held", flush=True)
    sys.stdin.readline()
else:
    try:
        print(len(open_checkpoint(path)))
    except PermissionError as error:
        print(error.filename)

"""A file that changed while it was closed raises an error that names it."""

import errno
import os
import sys

from few_descriptors import paths

from pagestream import open_tokens
from pagestream.errors import FileChangedError

corpus = open_tokens(paths)
path = paths[99]
assert not any(os.path.realpath(f"/proc/self/fd/{fd}") == path for fd in os.listdir("/proc/self/fd"))
match sys.argv[2]:
    case "vanished":
        os.unlink(path)
    case "replaced":
        open(path + ".new", "wb").write(bytes(6))
        os.replace(path + ".new", path)
    case "grown":
        open(path, "ab").write(bytes(2))
    case "cut":
        os.truncate(path, 4)
    case "rewritten":
        os.utime(path, (1, 1))
for ask in (
    lambda: corpus[-1],
    lambda: corpus[290:],
    lambda: corpus.read(290, 300),
    corpus.check,
    lambda: corpus.fingerprint,
):
    try:
        ask()
    except FileChangedError as error:
        assert (error.errno, error.filename) == (errno.ESTALE, path)
        print(error)
corpus[:290]

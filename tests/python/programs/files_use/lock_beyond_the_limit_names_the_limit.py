"""Locks more memory than the limit allows, and prints the error."""

import errno
import os
import resource
import sys

from pagestream import MappedFile

resource.setrlimit(resource.RLIMIT_MEMLOCK, (int(sys.argv[2]), int(sys.argv[2])))
if os.geteuid() == 0:
    os.setgroups([])
    os.setgid(65534)
    os.setuid(65534)
f = MappedFile(sys.argv[1])
try:
    f.lock()
except OSError as error:
    assert error.filename == sys.argv[1]
    print(errno.errorcode[error.errno], error.strerror)

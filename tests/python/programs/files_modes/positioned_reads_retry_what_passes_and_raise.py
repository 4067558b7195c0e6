"""Positioned reads retry transient errors and raise permanent ones."""

import errno
import sys

from pagestream import MappedFile

f = MappedFile(sys.argv[1], mode="private")
try:
    print(len(f.read()))
except OSError as error:
    assert error.filename == sys.argv[1] and error.offset == 0 and error.length == 8192
    print(type(error).__name__, errno.errorcode[error.errno])

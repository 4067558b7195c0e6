"""A pinned mode raises the errno of the failed mmap."""

import sys

from pagestream import MappedFile

try:
    MappedFile(sys.argv[1], mode=sys.argv[2])
except OSError as error:
    print(error.errno, error.filename == sys.argv[1], error.strerror)

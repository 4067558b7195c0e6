"""Opens files until the descriptors run out, and prints the error."""

import resource
import sys

from pagestream import MappedFile

resource.setrlimit(resource.RLIMIT_NOFILE, (32, 32))
held = []
try:
    while True:
        held.append(MappedFile(sys.argv[1]))
except OSError as error:
    print(error.errno, error.filename == sys.argv[1], error.strerror)

"""With too little address space, files are read, and the limit is named."""

import resource
import sys

from pagestream import MappedFile

resource.setrlimit(resource.RLIMIT_AS, (1 << 36, 1 << 36))
f = MappedFile(sys.argv[1])
assert f.read((1 << 40) - 8) == bytes(8)
print(f.mode, f.reason)
try:
    MappedFile(sys.argv[1], mode="shared")
except OSError as error:
    print(error.errno, error.strerror)

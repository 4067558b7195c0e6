"""The errno of a failed mmap decides the next mode."""

import sys

from pagestream import MappedFile

f = MappedFile(sys.argv[1])
assert f.read() == open(sys.argv[1], "rb").read()
print(f.mode, f.reason, sep="|")

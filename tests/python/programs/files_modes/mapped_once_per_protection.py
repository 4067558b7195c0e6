"""Uses a file in many ways. Arrays use copy-on-write pages, and everything else reads the shared mapping."""

import sys

from pagestream import MappedFile

f = MappedFile(sys.argv[1])
f.read()
f.view()
f.view(7, 9)
f.read(5, 5)
f.file_system
f.residency()
f.warm()
f.check()
f.refresh()

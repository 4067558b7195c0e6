"""Nothing is mapped twice and opened once."""

import sys

from pagestream import MappedFile

f = MappedFile(sys.argv[1])
f.read()
f.view()
f.read(5, 5)
f.file_system
f.residency()
f.warm()
f.check()
f.refresh()

"""Warms a file and prints the growth of the resident set."""

import sys

from pagestream import MappedFile


def resident():
    return next(int(line.split()[1]) for line in open("/proc/self/status") if line.startswith("RssFile"))


f = MappedFile(sys.argv[1])
f.warm(0, 1)
before = resident()
f.warm()
assert f.residency().fraction > 0.9  # the kernel may have reclaimed some pages
print(resident() - before)

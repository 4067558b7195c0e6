"""Samples the residency of a file that has random advice."""

import os
import sys

from pagestream import MappedFile

os.setgroups([])
os.setgid(65534)
os.setuid(65534)
f = MappedFile(sys.argv[1], mode="read")
assert f.advise("random")
print(f.residency().method)

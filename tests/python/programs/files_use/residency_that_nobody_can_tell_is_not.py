"""Prints the residency of a file where the kernel reports none."""

import math
import os
import sys

from pagestream import MappedFile

f = MappedFile(sys.argv[1])
os.setgroups([])
os.setgid(65534)
os.setuid(65534)
found = f.residency()
print(found.method, found.exact, math.isnan(found.fraction), found.pages)

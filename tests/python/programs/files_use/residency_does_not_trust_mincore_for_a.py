"""Prints the residency for a user without write permission."""

import os
import sys

from pagestream import MappedFile

MappedFile(sys.argv[1]).evict()
os.setgroups([])
os.setgid(65534)
os.setuid(65534)
f = MappedFile(sys.argv[1])
cold = f.residency()
assert cold.pages is None and cold.fraction < 0.05, cold
small = f.residency(8 << 20, 1 << 20)
assert small.pages is not None and len(small.pages) == 256
f.warm()
warm = f.residency()
print(cold.method, cold.exact, warm.fraction)

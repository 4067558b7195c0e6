"""Prints the permissions of an array's pages under a limit on private writable memory."""

import resource
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2]))

from pagestream import open_checkpoint

from support.mappings import place_in_file

path = sys.argv[1]
weights = open_checkpoint(path)
held = int(Path("/proc/self/statm").read_text().split()[5]) * resource.getpagesize()
resource.setrlimit(resource.RLIMIT_DATA, (held + (16 << 20), -1))
array = weights["x"]
assert array[-1] == array.size - 1 and not array.flags.writeable
resource.setrlimit(resource.RLIMIT_DATA, (-1, -1))
text = weights.explain()
assert "arrays lie on read-only pages (MAP_PRIVATE with PROT_WRITE: ENOMEM" in text, text
assert "a write to them, for example by torch, kills the process" in text
print(place_in_file(array, path)[1])

"""Pages that were written stay in swap where all of the storage is gone."""

import sys

from damaged import used
from swapped import right, x

print("ready", flush=True)
sys.stdin.readline()
used(x[100].sum)
print(right())

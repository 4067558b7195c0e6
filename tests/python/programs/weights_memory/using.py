"""Uses tensors one after another and keeps none of them."""

import json
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2]))

from support.large_checkpoint import evict, is_right
from support.memory_peak import Peak

folder = Path(sys.argv[1])


def stored_bytes():
    """Returns the bytes that this process has read from block devices."""
    with open("/proc/self/io") as counts:
        return next(int(line.split()[1]) for line in counts if line.startswith("read_bytes:"))


def use(pairs):
    """Returns how many tensors were right, the peak of their memory, and the bytes read for them."""
    right, before = 0, stored_bytes()
    with Peak() as peak:
        for name, tensor in pairs:
            right += is_right(name, int(tensor.sum()))
            del tensor
    return {"right": right, "extra_bytes": peak.extra_bytes, "stored_bytes": stored_bytes() - before}


def use_by(functions):
    """Uses the tensors in each of the given ways, and prints the costs of each way."""
    found = []
    for way in json.loads(sys.argv[2]):
        if found:
            evict(folder)
        found.append(use(functions[way.pop("by")](**way)))
    print(json.dumps(found))

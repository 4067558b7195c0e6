"""Uses tensors one after another with a lead, and prints the peak growth of anonymous memory in KiB."""

import sys
from pathlib import Path

from pagestream.safetensors import safe_open


def anonymous_kib():
    status = Path("/proc/self/status").read_text()
    return int(next(line for line in status.splitlines() if line.startswith("RssAnon")).split()[1])


with safe_open(sys.argv[1], "np", ahead=int(sys.argv[2])) as file:
    names = file.keys()
    before = anonymous_kib()
    most = 0
    for name in names:
        array = file.get_tensor(name)
        assert array[0] == array[-1]
        most = max(most, anonymous_kib() - before)
print(most)

"""Warms a checkpoint and takes its tensors. Prints the peak growth of anonymous memory in KiB."""

import sys
import time
from pathlib import Path

from pagestream import open_checkpoint


def anonymous_kib():
    status = Path("/proc/self/status").read_text()
    return int(next(line for line in status.splitlines() if line.startswith("RssAnon")).split()[1])


weights = open_checkpoint(sys.argv[1])
names = list(weights)
before = most = anonymous_kib()
warming = weights.warm(memory_bytes=int(sys.argv[2]))
while not warming.wait(0):
    most = max(most, anonymous_kib() - before)
    time.sleep(0.001)
most = anonymous_kib() - before
for name in names:
    array = weights[name]
    assert array.flat[0] == array.flat[-1]
    most = max(most, anonymous_kib() - before)
print(most)

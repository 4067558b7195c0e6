"""Prints the signal handlers that the import adds, and the signal numbers of those that a mapping adds."""

import sys
from pathlib import Path


def handled():
    (line,) = [line for line in Path("/proc/self/status").read_text().splitlines() if "SigCgt" in line]
    return int(line.split()[1], 16)


states = [handled()]
import pagestream

states.append(handled())
file = pagestream.MappedFile(sys.argv[1])
file.read(0, 1)
states.append(handled())
before, imported, mapped = states
# Bit n - 1 represents signal n (proc_pid_status(5)).
print(imported ^ before, [bit + 1 for bit in range(64) if (mapped ^ before) >> bit & 1])

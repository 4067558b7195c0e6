"""Opens and closes files with large headers, and prints by how many KiB anonymous memory has grown.

    memory.py FOLDER SECONDS

Prints two numbers: after many headers of 4 MiB, and then after one of 90 MB.
"""

import json
import sys
import time
from pathlib import Path

from pagestream.safetensors import safe_open


def anonymous_kib():
    status = Path("/proc/self/status").read_text()
    return int(next(line for line in status.splitlines() if line.startswith("RssAnon")).split()[1])


def made(name, header_bytes):
    path = Path(sys.argv[1], name)
    header = json.dumps({"__metadata__": {"long": "x" * header_bytes}}).encode()
    path.write_bytes(len(header).to_bytes(8, "little") + header)
    return path


many = [made(f"{number}.safetensors", 4 << 20) for number in range(48)]
huge = made("huge.safetensors", 90_000_000)


def reopen(paths):
    for path in paths:
        safe_open(path, "np").close()


before = anonymous_kib()
reopen([*many, huge])
time.sleep(float(sys.argv[2]))
reopen(many)
after_many = anonymous_kib()
reopen([huge, huge])
print(after_many - before, anonymous_kib() - before)

"""Loads a checkpoint tensor by tensor, once told to.

    load.py WAY FOLDER

Prints "open" once the files are open, waits for a line, and prints "begun" with the first tensor. At the end,
prints a digest of all tensors by name. Two of the ways wait for a line after each file.
"""

import hashlib
import sys
from pathlib import Path

from pagestream import open_checkpoint
from pagestream.safetensors import safe_open

way, folder = sys.argv[1], Path(sys.argv[2])


def tensors():
    if way == "stream":
        yield from weights.stream()
        return
    for path in sorted(folder.glob("*.safetensors")):
        with safe_open(path, "np") as file:
            for name in file.keys():  # noqa: SIM118 - upstream's has no iterator
                yield name, file.get_tensor(name)
            if way == "stays in each file":
                told("read")
        if way == "leaves each file":
            told("closed")


def told(word):
    print(word, flush=True)
    sys.stdin.readline()


if way == "stream":
    weights = open_checkpoint(folder)
print("open", flush=True)
sys.stdin.readline()
digest = None
for name, array in tensors():
    if digest is None:
        print("begun", flush=True)
        digest = hashlib.sha256()
    digest.update(name.encode() + array.tobytes())
print(digest.hexdigest())

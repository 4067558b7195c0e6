"""Loads a checkpoint and keeps its files open.

    hold.py WAY FOLDER

Prints "open", waits for a line, and uses all tensors. Prints "held", waits for a line, and forks a child that
closes the files. Prints "forked" and the ID of another child, which stays alive, and waits.
"""

import contextlib
import os
import signal
import sys
from pathlib import Path

from pagestream import open_checkpoint
from pagestream.safetensors import safe_open

way, folder = sys.argv[1], Path(sys.argv[2])
ends = contextlib.ExitStack()
print("open", flush=True)
sys.stdin.readline()
if way == "stream":
    weights = ends.enter_context(open_checkpoint(folder))
    for _, array in weights.stream():
        array.sum()
else:
    for path in sorted(folder.glob("*.safetensors")):
        file = ends.enter_context(safe_open(path, "np"))
        for name in file.keys():  # noqa: SIM118 - upstream's has no iterator
            file.get_tensor(name).sum()
print("held", flush=True)
sys.stdin.readline()
child = os.fork()
if child == 0:
    ends.close()
    os._exit(0)
assert os.waitpid(child, 0)[1] == 0
child = os.fork()
if child == 0:
    signal.pause()
print("forked", child, flush=True)
signal.pause()

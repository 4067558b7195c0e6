"""Forks while threads open files. Each child opens all files, and waits for no thread of its parent.

forked.py FOLDER SECONDS
"""

import os
import sys
import threading
import time
from pathlib import Path

from pagestream.safetensors import safe_open

paths = sorted(Path(sys.argv[1]).glob("*.safetensors"))
stop = threading.Event()


def values():
    found = []
    for path in paths:
        with safe_open(path, "np") as file:
            found.append(int(file.get_tensor("a")[0]))
    return found


def open_until_stopped():
    while not stop.is_set():
        values()


values()
time.sleep(float(sys.argv[2]))
threads = [threading.Thread(target=open_until_stopped) for _ in range(4)]
for thread in threads:
    thread.start()
right = 0
for _ in range(50):
    child = os.fork()
    if child == 0:
        os._exit(values() == list(range(len(paths))))
    _, status = os.waitpid(child, 0)
    right += os.waitstatus_to_exitcode(status)
stop.set()
for thread in threads:
    thread.join()
print(right, "children found all")

"""Exits in one of several ways while daemon threads read a checkpoint in all ways.

    leave.py WAY FOLDER

Waits for a line, prints "leaving" and exits. The threads keep reading until the process ends.
"""

import atexit
import os
import signal
import sys
import threading

from pagestream import open_checkpoint
from pagestream.safetensors import safe_open

way, folder = sys.argv[1:]


def stream():
    for _, array in open_checkpoint(folder).stream(strategy="pread"):
        array.sum()


def get_tensors():
    with safe_open(f"{folder}/model.safetensors", "np") as file:
        for name in file.keys():  # noqa: SIM118 - upstream's has no iterator
            file.get_tensor(name).sum()


def get_slices():
    with safe_open(f"{folder}/model.safetensors", "np") as file:
        for name in file.keys():  # noqa: SIM118 - upstream's has no iterator
            file.get_slice(name)[::2]


def verify():
    open_checkpoint(folder).verify()


def warm():
    open_checkpoint(folder).warm().wait()


def again(read):
    while True:
        read()


def in_a_thread(call):
    thread = threading.Thread(target=call)
    thread.start()
    thread.join()


def fail():
    raise KeyError("a program's own")


WAYS = {
    "end": lambda: None,
    "sys.exit": lambda: sys.exit(7),
    "sys.exit in a thread": lambda: in_a_thread(lambda: sys.exit(7)),
    "os._exit": lambda: os._exit(7),
    "os._exit in a thread": lambda: in_a_thread(lambda: os._exit(7)),
    "exception": fail,
    "exception in a thread": lambda: in_a_thread(fail),
    "exception in atexit": lambda: atexit.register(fail),
    "SIGINT": lambda: signal.raise_signal(signal.SIGINT),
    "SIGTERM": lambda: signal.raise_signal(signal.SIGTERM),
    "SIGABRT": lambda: signal.raise_signal(signal.SIGABRT),
}
for read in (stream, get_tensors, get_slices, verify, warm):
    threading.Thread(target=again, args=(read,), daemon=True).start()
# The interpreter drops this stream as it exits.
unfinished = open_checkpoint(folder).stream(strategy="pread")
sys.stdin.readline()
print("leaving", flush=True)
WAYS[way]()

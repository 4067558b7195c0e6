"""Counts the instructions of a call with the library of `count.c`."""

import ctypes
import gc
import os

LIBRARY = ctypes.CDLL(os.environ["COUNT_LIBRARY"])


def count(who, what, call, times):
    """Calls a function several times. Callgrind records the instructions of all threads under a name."""
    for _ in range(2):
        call()
    gc.collect()
    gc.disable()
    LIBRARY.begin()
    for _ in range(times):
        call()
    LIBRARY.end(f"{who}|{what}|{times}".encode())
    gc.enable()

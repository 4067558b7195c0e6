"""Hangs forever with a child that hangs too. The child prints its process ID."""

import os
import signal


def child_waits():
    print(os.getpid(), flush=True)
    while True:
        signal.pause()


def waits_for_ever():
    if os.fork() == 0:
        child_waits()
    while True:
        signal.pause()


waits_for_ever()

"""Runs a function while the file of the first argument has a write lease."""

import fcntl
import os
import signal
import sys
import time


def under_a_lease(function):
    """Runs `function`. SIGIO tells the holder of the lease, which releases it a second later."""
    told, tell = os.pipe()
    holder = os.fork()
    if holder == 0:
        file = os.open(sys.argv[1], os.O_RDWR)

        def give_back(*_):
            time.sleep(1)
            fcntl.fcntl(file, fcntl.F_SETLEASE, fcntl.F_UNLCK)

        signal.signal(signal.SIGIO, give_back)
        fcntl.fcntl(file, fcntl.F_SETLEASE, fcntl.F_WRLCK)
        os.write(tell, b"x")
        while True:
            signal.pause()
    os.read(told, 1)
    try:
        function()
    finally:
        os.kill(holder, signal.SIGKILL)

"""Interrupts the opening of many files."""

import os
import signal
import sys
import threading
import time

import pagestream


def interrupt():
    while len(os.listdir("/proc/self/fd")) < 80:
        time.sleep(0.001)  # gives processor time to the opening threads
    os.kill(os.getpid(), signal.SIGINT)


threading.Thread(target=interrupt).start()
try:
    pagestream.open_checkpoint(sys.argv[1])
except KeyboardInterrupt:
    print("interrupted")

"""Interrupts a stream whose first reads hang."""

import os
import signal
import sys
import threading
import time

from pagestream import open_checkpoint

signal.signal(signal.SIGINT, signal.default_int_handler)
weights = open_checkpoint(sys.argv[1])
landed = 0


def interrupt():
    time.sleep(0.3)
    os.kill(os.getpid(), signal.SIGINT)


threading.Thread(target=interrupt).start()
try:
    for _ in weights.stream(strategy="pread"):
        landed += 1
except KeyboardInterrupt:
    print(f"heard after {landed} tensors", flush=True)

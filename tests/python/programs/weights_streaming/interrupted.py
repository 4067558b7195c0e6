"""Interrupts a stream whose first reads hang."""

import os
import signal
import sys
import threading

from pagestream import open_checkpoint

signal.signal(signal.SIGINT, signal.default_int_handler)
weights = open_checkpoint(sys.argv[1])
landed = 0


def interrupt():
    # The parent writes this line once the first reads hang.
    sys.stdin.readline()
    os.kill(os.getpid(), signal.SIGINT)


try:
    threading.Thread(target=interrupt).start()
    for _ in weights.stream(strategy="pread"):
        landed += 1
except KeyboardInterrupt:
    print(f"heard after {landed} tensors", flush=True)

"""Interrupts the writing of checksums while the first reads hang."""

import os
import signal
import sys
import threading

from pagestream import open_checkpoint

signal.signal(signal.SIGINT, signal.default_int_handler)
weights = open_checkpoint(sys.argv[1])
done_bytes = [0]


def interrupt():
    # The parent writes this line once the first reads hang.
    sys.stdin.readline()
    os.kill(os.getpid(), signal.SIGINT)


try:
    threading.Thread(target=interrupt).start()
    weights.write_checksums(progress=lambda done, _total: done_bytes.append(done))
except KeyboardInterrupt:
    print(f"heard after {done_bytes[-1]} bytes", flush=True)

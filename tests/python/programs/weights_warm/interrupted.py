"""Interrupts the wait for a warming whose first reads hang."""

import os
import signal
import sys
import threading

from pagestream import open_checkpoint

signal.signal(signal.SIGINT, signal.default_int_handler)
warming = open_checkpoint(sys.argv[1]).warm()


def interrupt():
    # The parent writes this line once the first reads hang.
    sys.stdin.readline()
    os.kill(os.getpid(), signal.SIGINT)


try:
    threading.Thread(target=interrupt).start()
    warming.wait()
except KeyboardInterrupt:
    print(f"heard, {warming.bytes_read} bytes read", flush=True)
os._exit(0)  # does not wait for the hanging reads

"""Interrupts a stream to a device whose first reads hang."""

import os
import signal
import sys
import threading
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2]))

from pagestream.devices import copy_device
from pagestream.torch import stream_checkpoint

from support.late_device import LateDevice

signal.signal(signal.SIGINT, signal.default_int_handler)
late = LateDevice()
copy_device.staged_for = lambda _: late


def interrupt():
    # The parent writes this line once the first reads hang.
    sys.stdin.readline()
    os.kill(os.getpid(), signal.SIGINT)


stream = stream_checkpoint(sys.argv[1], device="cpu")
threading.Thread(target=interrupt).start()
try:
    for _ in stream:
        print("a tensor", flush=True)
except KeyboardInterrupt:
    print(f"heard; {len(late.registered)} registered", flush=True)

"""An interrupt is heard while files are opened."""

import os
import signal
import sys
import threading
import time

import pagestream


def interrupt():
    while len(os.listdir("/proc/self/fd")) < 80:
        time.sleep(0.001)  # the threads that open files need the processor
    os.kill(os.getpid(), signal.SIGINT)


threading.Thread(target=interrupt).start()
try:
    pagestream.open_checkpoint(sys.argv[1])
except KeyboardInterrupt:
    print("interrupted")

"""An interrupt is heard while files are opened."""

import os
import signal
import sys
import threading

import pagestream


def interrupt():
    while len(os.listdir("/proc/self/fd")) < 80:
        pass
    os.kill(os.getpid(), signal.SIGINT)


threading.Thread(target=interrupt).start()
try:
    pagestream.open_checkpoint(sys.argv[1])
except KeyboardInterrupt:
    print("interrupted")

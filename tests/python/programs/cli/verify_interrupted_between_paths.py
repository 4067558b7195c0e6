"""`pagestream verify` that hears Ctrl-C after its first path was given to a thread, and before the second."""

import os
import signal
import sys
from concurrent.futures import ThreadPoolExecutor

from pagestream.cli import main

submit = ThreadPoolExecutor.submit


def submit_and_interrupt(*arguments):
    ThreadPoolExecutor.submit = submit
    future = submit(*arguments)
    os.kill(os.getpid(), signal.SIGINT)
    return future


ThreadPoolExecutor.submit = submit_and_interrupt
sys.argv[1:1] = ["verify"]
main()

"""Sends Ctrl-C to `pagestream verify` after a thread has taken the first path, but before the second path."""

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

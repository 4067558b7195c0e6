"""Forks while a thread takes batches. Each child frees the parent's batches and takes its own."""

import faulthandler
import os
import signal
import sys
import threading

from pagestream import TokenLoader

loader = TokenLoader(sys.argv[1], sequence_length=16, batch_size=1, epochs=None, threads=4)
stop = threading.Event()
kept = []


def consume():
    while not stop.is_set():
        kept[:] = [next(loader) for _ in range(8)]


thread = threading.Thread(target=consume)
thread.start()
for turn in range(100):
    child = os.fork()
    if child == 0:
        # A child that hangs prints its stacks and is killed.
        faulthandler.register(signal.SIGALRM, chain=True)
        signal.alarm(120)
        kept.clear()  # frees the parent's arrays
        for _ in range(5):
            next(loader)
        loader.close()
        os._exit(0)
    assert os.waitpid(child, 0)[1] == 0, turn
stop.set()
thread.join()
loader.close()
print("all came back")

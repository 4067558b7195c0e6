"""Forks while a thread takes batches. Each child checks the metrics."""

import faulthandler
import os
import signal
import sys
import threading

from pagestream import TokenLoader

loader = TokenLoader(sys.argv[1], sequence_length=16, batch_size=1, epochs=None, threads=4)
stop = threading.Event()


def consume():
    while not stop.is_set():
        next(loader)


thread = threading.Thread(target=consume)
thread.start()
before = 0
for turn in range(150):
    child = os.fork()
    if child == 0:
        # A child that hangs prints its stacks and is killed.
        faulthandler.register(signal.SIGALRM, chain=True)
        signal.alarm(120)
        found = loader.metrics()
        assert found.batches >= before
        assert (found.threads, found.ring_batches) == (0, 0), found
        kept = next(loader)
        assert loader.metrics().batches == found.batches + 1
        assert loader.metrics().threads > 0
        os._exit(0)
    assert os.waitpid(child, 0)[1] == 0, turn
    before = loader.metrics().batches
stop.set()
thread.join()
loader.close()
print("all came back")

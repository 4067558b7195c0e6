"""Forks while a loader opens and closes files. Each child reads all files."""

import faulthandler
import os
import resource
import signal
import sys
import threading

resource.setrlimit(resource.RLIMIT_NOFILE, (64, 64))
from pagestream import TokenLoader, open_tokens

folder = sys.argv[1]
tokens = open_tokens(folder)
loader = TokenLoader(tokens, sequence_length=50, batch_size=8, epochs=None, threads=4)
stop = threading.Event()


def consume():
    while not stop.is_set():
        next(loader)


thread = threading.Thread(target=consume)
thread.start()
for turn in range(40):
    child = os.fork()
    if child == 0:
        # A child that hangs prints its stacks and is killed.
        faulthandler.register(signal.SIGALRM, chain=True)
        signal.alarm(120)
        for shard in range(200):
            assert tokens[shard * 100] == shard
        os._exit(0)
    assert os.waitpid(child, 0)[1] == 0, turn
stop.set()
thread.join()
loader.close()
print("all came back")

"""Forks while threads write, and writes in the children."""

import faulthandler
import os
import signal
import threading

import numpy as np

from pagestream.safetensors.numpy import save

tensors = {"x": np.ones(4, "f4")}
save(tensors)  # imports upstream's modules first, because imports take Python's own locks


def write():
    while True:
        save(tensors)


for _ in range(2):
    threading.Thread(target=write, daemon=True).start()
for _ in range(60):
    child = os.fork()
    if child == 0:
        # A child that hangs prints its stacks and is killed.
        faulthandler.register(signal.SIGALRM, chain=True)
        signal.alarm(120)
        save(tensors)
        os._exit(0)
    assert os.waitpid(child, 0)[1] == 0
print("written", flush=True)
os._exit(0)

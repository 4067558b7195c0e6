"""A sealed buffer reaches another process and stays sealed."""

import multiprocessing

import numpy as np

from pagestream import StagingBuffer


def look(b, queue):
    queue.put((b.sealed, memoryview(b).readonly, bytes(memoryview(b)[:3])))


if __name__ == "__main__":
    context = multiprocessing.get_context("fork")
    b = StagingBuffer(4096, shared=True)
    np.frombuffer(b, "u1")[:] = 6
    b.seal()
    from pagestream.files.staging import _map_descriptor

    duplicate = type("D", (), {"detach": lambda self: __import__("os").dup(b.fileno())})()
    again = _map_descriptor(StagingBuffer, duplicate, b.nbytes)
    print(again.sealed, memoryview(again).readonly, bytes(memoryview(again)[:3]))

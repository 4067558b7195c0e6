"""A main thread that waits for a worker gets the error at once."""

import os
import queue
import sys
import threading

from notice import array, path, raised

told, heard, results, lock = threading.Event(), threading.Event(), queue.Queue(), threading.Lock()
lock.acquire()
in_vain = []


def work():
    array.sum()
    if not heard.wait(60):
        in_vain.append(1)
        results.put(1)
        told.set()
        lock.release()


thread = threading.Thread(target=work)
wait = {"join": thread.join, "queue": results.get, "lock": lock.acquire, "condition": told.wait}[sys.argv[2]]
os.truncate(path, 4096)


def act():
    thread.start()
    wait()


print(raised(act), in_vain)
heard.set()

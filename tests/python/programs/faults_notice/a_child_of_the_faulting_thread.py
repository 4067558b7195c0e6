"""A thread forks right after a fault, before the main thread has handled the notice.

The child prints how often its fork hook ran to its end, the exceptions that reached no caller, and whether
its first two calls raised.
"""

import os
import sys
import threading

from notice import array, path, raised, unraised

from pagestream import MappedFile

sys.setswitchinterval(1000)  # The main thread runs once the forking thread waits.
ended = []


def hook():
    for _ in range(1000):
        pass
    ended.append(1)


def call():
    MappedFile(__file__).read(0, 1)


def work():
    array[-1]  # `sum` would let the main thread run.
    child = os.fork()
    if child == 0:
        print(len(ended), unraised, raised(call), raised(call), flush=True)
        os._exit(0)
    os.waitpid(child, 0)


def act():
    thread.start()
    thread.join()


os.register_at_fork(after_in_child=hook)
thread = threading.Thread(target=work)
os.truncate(path, 4096)
is_raised = raised(act)
# The child prints before the thread ends.
thread.join()
print(is_raised, flush=True)

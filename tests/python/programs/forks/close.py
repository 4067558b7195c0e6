"""A child closes a corpus while threads of its parent read it."""

import sys
import threading

from forking import forked

from pagestream import open_tokens

tokens = open_tokens(sys.argv[1])
stop = threading.Event()


def work():
    while not stop.is_set():
        tokens.read(0, 20_000)


threads = [threading.Thread(target=work) for _ in range(4)]
for thread in threads:
    thread.start()
statuses = [forked(tokens.close) for _ in range(150)]
stop.set()
for thread in threads:
    thread.join()
print(statuses.count(0), len(statuses))

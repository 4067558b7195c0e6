"""Prints how many bytes a verification adds to the peak of anonymous memory."""

import sys
import threading
import time

from pagestream import open_checkpoint


def anonymous_bytes():
    with open("/proc/self/status") as file:
        lines = dict(line.split(":", 1) for line in file)
    return int(lines["RssAnon"].split()[0]) << 10


weights = open_checkpoint(sys.argv[1])
before = anonymous_bytes()
peak = [0]
done = threading.Event()


def watch():
    while not done.is_set():
        peak[0] = max(peak[0], anonymous_bytes())
        time.sleep(0.002)


watcher = threading.Thread(target=watch)
watcher.start()
weights.write_checksums()
weights.verify()
done.set()
watcher.join()
print(peak[0] - before)

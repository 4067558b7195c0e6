"""The anonymous memory of this process: the current value, and the peak since the last query."""

import threading
import time


def anonymous_bytes():
    with open("/proc/self/status") as status:
        return next(int(line.split()[1]) for line in status if line.startswith("RssAnon:")) * 1024


class Peak:
    """A thread that samples anonymous memory every millisecond."""

    def __enter__(self):
        self.before = self.most = anonymous_bytes()
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._watch)
        self._thread.start()
        return self

    def _watch(self):
        while not self._over.is_set():
            self.most = max(self.most, anonymous_bytes())
            time.sleep(0.001)

    def __exit__(self, *_exception):
        self._over.set()
        self._thread.join()

    @property
    def extra_bytes(self):
        return self.most - self.before

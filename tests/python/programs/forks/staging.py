"""A child uses a staging buffer while threads of its parent keep taking the lock."""

import threading

from forking import forked

from pagestream import StagingBuffer

buffer = StagingBuffer(1 << 20)
# More mappings make /proc/self/smaps longer.
others = [StagingBuffer(4096, huge_pages="never") for _ in range(2000)]
stop = threading.Event()


def poll():
    while not stop.is_set():
        buffer.huge_page_bytes


def act():
    assert len(buffer) == buffer.nbytes == len(memoryview(buffer)) == 1 << 20


threads = [threading.Thread(target=poll) for _ in range(2)]
for thread in threads:
    thread.start()
statuses = [forked(act) for _ in range(20)]
stop.set()
for thread in threads:
    thread.join()
print(statuses.count(0), len(statuses))

"""Opens and closes a file ten thousand times, and prints what is left."""

import sys
import time

from counting import descriptors, mappings, status

from pagestream import open_checkpoint
from pagestream.safetensors import safe_open


def use(turn):
    with safe_open(sys.argv[1], "np") as file:
        array = file.get_tensor("3")
    assert array[7] == 3
    kept = open_checkpoint(sys.argv[1])
    view = kept["5"][turn % 100 :]
    if turn % 2:
        kept.close()
    assert view[0] == 5


def held():
    for _ in range(500):
        if not mappings():
            break
        time.sleep(0.01)  # other threads unmap large mappings
    return status("RssAnon"), descriptors(), mappings()


for turn in range(200):
    use(turn)
before = held()
for turn in range(10_000):
    use(turn)
after = held()
print(after[0] - before[0], after[1] - before[1], after[2])

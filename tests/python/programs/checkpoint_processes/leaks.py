"""Opens and closes checkpoints ten thousand times, and checks descriptors, mappings and memory for leaks."""

import gc
import os
import sys

import pagestream


def held():
    gc.collect()
    with open("/proc/self/status") as status:
        resident = next(int(line.split()[1]) for line in status if line.startswith("RssAnon"))
    with open("/proc/self/maps") as maps:
        # The allocator's own mappings come and go.
        mapped = sum("safetensors" in line for line in maps)
    return len(os.listdir("/proc/self/fd")), mapped, resident


folder = sys.argv[1]


def use(turn):
    weights = pagestream.open_checkpoint(folder)
    array = weights["layer.1.0"]
    if turn % 3:
        weights.close()
    if turn % 2:
        del weights
    assert array[0, 0] == 1000
    try:
        pagestream.open_checkpoint(sys.argv[2])
    except pagestream.errors.SafetensorError:
        pass


for turn in range(2000):
    use(turn)
before = held()
for turn in range(10_000):
    use(turn)
after = held()
assert after[:2] == before[:2], (before, after)
assert after[2] - before[2] < 1024, (before, after)
print("good")

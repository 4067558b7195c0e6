"""A child retains no file that threads of its parent unmap."""

import sys
import time

from forking import forked

from pagestream.safetensors import safe_open


def anonymous():
    lines = open("/proc/self/status").read().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("RssAnon")) >> 10


def leftovers():
    return sum(sys.argv[1] in line for line in open("/proc/self/maps"))


def opened(number):
    # A lead would retain the file for a moment.
    with safe_open(f"{sys.argv[1]}/{number}.safetensors", "np", mmap_mode="private", ahead=False) as file:
        return file.get_tensor("t")


def dirtied():
    arrays = [opened(number) for number in range(4)]
    for array in arrays:
        array[::4096] = 1
    return arrays


def nothing_is_left():
    assert (leftovers(), anonymous() < 100) == (0, True), (leftovers(), anonymous())


def wait_until_unmapped():
    for _ in range(500):
        if not leftovers():
            break
        time.sleep(0.01)
    assert leftovers() == 0


def act():
    nothing_is_left()
    if turn % 5 == 0:
        # In this process, threads unmap as in the parent, and forks must find the same state.
        arrays = dirtied()
        del arrays
        assert forked(nothing_is_left) == 0
        wait_until_unmapped()


found = []
for turn in range(20):
    arrays = dirtied()
    assert anonymous() >= 400, anonymous()
    del arrays
    found.append(forked(act))
    wait_until_unmapped()
print(found.count(0), len(found))

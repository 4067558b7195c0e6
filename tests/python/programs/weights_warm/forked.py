"""Forks while tensors are read ahead. The child may not use the handle, and both processes read all tensors.

Prints how many tensors each process found right.
"""

import os
import sys

from pagestream import open_checkpoint

weights = open_checkpoint(sys.argv[1])
warming = weights.warm(memory_bytes=8 << 20)
names = list(weights)
weights[names[0]].sum()


def right():
    return sum(int(weights[name].flat[-1]) == number for number, name in enumerate(names))


child = os.fork()
if child == 0:
    try:
        warming.wait()
    except ValueError as error:
        print("told" if "forked" in str(error) else error)
    print(right(), len(dict(weights.stream())))
    warming.cancel()
    del warming
    weights.close()
    sys.stdout.flush()
    os._exit(0)
_, status = os.waitpid(child, 0)
assert status == 0, status
print(right(), warming.wait())

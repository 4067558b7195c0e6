"""A child takes batches from a loader whose threads exist only in its parent."""

import sys
import time

from forking import forked

from pagestream import TokenLoader, open_tokens


def act():
    for _ in range(40):
        next(loader)
    loader.close()
    tokens.close()


statuses = []
for turn in range(60):
    tokens = open_tokens(sys.argv[1])
    loader = TokenLoader(tokens, sequence_length=64, batch_size=16, epochs=None, threads=4)
    time.sleep(turn % 6 / 1000)
    statuses.append(forked(act))
    if statuses[-1]:
        print(turn, statuses[-1], flush=True)
    loader.close()
    tokens.close()
print(statuses.count(0), len(statuses))

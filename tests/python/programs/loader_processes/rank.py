"""Loads an epoch of a token file as one of several ranks, once told to.

    rank.py PATH ORDER RANK WORLD_SIZE

Prints "open" once the file is open, waits for a line, and prints the number of its windows and their sum.
"""

import sys

from pagestream import TokenLoader, open_tokens

path, order, rank, world_size = sys.argv[1], sys.argv[2], int(sys.argv[3]), int(sys.argv[4])
loader = TokenLoader(
    open_tokens(path),
    sequence_length=2048,
    batch_size=8,
    order=order,
    epochs=1,
    drop_last=False,
    rank=rank,
    world_size=world_size,
)
print("open", flush=True)
sys.stdin.readline()
count = total = 0
for x, _ in loader:
    count += len(x)
    total += int(x.sum())
print(count, total)

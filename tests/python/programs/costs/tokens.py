"""Gathers windows and batches of a cached token file with pagestream and with NumPy, under callgrind."""

import sys
from pathlib import Path

import numpy as np
from counting import count

from pagestream import TokenLoader, open_tokens

LENGTH, ROWS = 1024, 8
path = Path(sys.argv[1]) / "train.bin"
np.arange(1 << 20, dtype="<u2").tofile(path)
memmap = np.memmap(path, dtype="<u2", mode="r")
starts = np.arange(ROWS) * 100_000


def batch():
    """Returns a batch like nanoGPT's `get_batch`."""
    x = np.stack([memmap[start : start + LENGTH].astype(np.int64) for start in starts])
    return x, np.stack([memmap[start + 1 : start + 1 + LENGTH].astype(np.int64) for start in starts])


with open_tokens(path, dtype="uint16") as tokens:
    count("pagestream", "one window", lambda: tokens.read(5000, 5001 + LENGTH), 100)
count("reference", "one window", lambda: np.array(memmap[5000 : 5001 + LENGTH]), 100)
with TokenLoader(path, sequence_length=LENGTH, batch_size=ROWS, epochs=None) as loader:
    count("pagestream", "next(loader)", lambda: next(loader), 100)
count("reference", "next(loader)", batch, 100)

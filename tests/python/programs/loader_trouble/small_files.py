"""Reads every window of a folder in order, in batches of the given size, by positioned reads."""

import sys

from pagestream import TokenLoader

folder, sequence_length, batch_size = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
options = {"order": "sequential", "target": "none", "epochs": 1, "mmap_mode": "read"}
with TokenLoader(folder, sequence_length=sequence_length, batch_size=batch_size, **options) as loader:
    print(sum(len(x) for x in loader))

"""Two DataLoader workers read a token file while it is truncated.

Run as ``python cut_under_workers.py FILE DATASET CONTEXT``, where DATASET is ``pagestream`` or ``memmap``
(the behaviour without pagestream). Prints the parent's result.
"""

from __future__ import annotations

import os
import sys

import numpy as np
import torch
from torch.utils.data import DataLoader, Dataset

from pagestream.torch import TokenDataset

LENGTH = 1024
BATCH = 4


class Memmap(Dataset):
    def __init__(self, path):
        self.tokens = np.memmap(path, "<u2", mode="r")

    def __len__(self):
        return len(self.tokens) // LENGTH

    def __getitem__(self, index):
        return torch.from_numpy(self.tokens[index * LENGTH :][:LENGTH].astype("i8"))


def main(path, kind, context):
    dataset = Memmap(path) if kind == "memmap" else TokenDataset(path, LENGTH, stride=LENGTH, target="none")
    loader = DataLoader(dataset, batch_size=BATCH, num_workers=2, multiprocessing_context=context)
    seen = 0
    try:
        for batch in loader:
            seen += len(batch)
            if seen == 2 * BATCH:  # both workers are busy
                os.truncate(path, 4096)
    except Exception as error:  # noqa: BLE001 - the test examines any error
        print(type(error).__name__, isinstance(error, OSError))
        print(error)
    print(f"alive after {seen} of {len(dataset)}")


if __name__ == "__main__":
    main(*sys.argv[1:])

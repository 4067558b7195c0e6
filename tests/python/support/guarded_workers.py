"""A dataset in torch workers keeps a view of a file, which is then truncated. Prints the error's name."""

import os
import sys

import numpy as np
import torch
from torch.utils.data import DataLoader, Dataset

import pagestream


class Slices(Dataset[torch.Tensor]):
    """The rows of a view from before the workers started."""

    def __init__(self, path):
        self.path = path
        self.tokens = pagestream.open_tokens(path)[:]

    def __len__(self):
        return 1000

    def __getitem__(self, index):
        if index == 500:
            os.truncate(self.path, 4096)
        return torch.from_numpy(self.tokens[index * 1000 : index * 1000 + 64].astype("i8"))


if __name__ == "__main__":
    np.zeros(1 << 20, "u2").tofile(sys.argv[1])
    loader = DataLoader(
        Slices(sys.argv[1]),
        batch_size=10,
        num_workers=2,
        multiprocessing_context="fork",
        worker_init_fn=pagestream.guard,
    )
    try:
        for _ in loader:
            pass
    except pagestream.errors.PagestreamError as error:
        print(type(error).__name__)

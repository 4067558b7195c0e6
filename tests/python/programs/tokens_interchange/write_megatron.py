"""Write megatron."""

import sys

import numpy as np
import torch
from megatron.core.datasets.indexed_dataset import IndexedDatasetBuilder

for dtype in (np.uint16, np.int32, np.int64):
    for multimodal in (False, True):
        name = f"{sys.argv[1]}/{np.dtype(dtype).name}_{multimodal}"
        builder = IndexedDatasetBuilder(f"{name}.bin", dtype=dtype, multimodal=multimodal)
        tokens = torch.arange(312)
        end = 0
        for number, length in enumerate([4, 0, 7, 1, 300]):
            builder.add_item(tokens[end : end + length], number % 2 if multimodal else 0)
            end += length
            for _ in range({0: 2, 2: 1, 4: 1}.get(number, 0)):
                builder.end_document()
        builder.finalize(f"{name}.idx")
print("good")

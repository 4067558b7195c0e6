"""Read megatron."""

import sys

import numpy as np
from megatron.core.datasets.indexed_dataset import IndexedDataset

for name in sys.argv[2:]:
    for mmap in (True, False):
        data = IndexedDataset(f"{sys.argv[1]}/{name}", mmap=mmap)
        expected = np.load(f"{sys.argv[1]}/{name}.npy")
        assert data.index.dtype == expected.dtype, (name, data.index.dtype)
        assert data.sequence_lengths.tolist() == [4, 0, 7, 1, 300]
        assert data.document_indices.tolist() == [0, 1, 2, 3, 4, 5]
        ends = np.cumsum(data.sequence_lengths)
        for number, end in enumerate(ends):
            found = data[number]
            assert (found == expected[end - len(found) : end]).all(), (name, number)
print("good")

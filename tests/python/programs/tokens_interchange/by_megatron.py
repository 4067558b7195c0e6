"""Megatron reads token files, and writes some: ``by_megatron.py FOLDER NAME…``."""

import sys

import numpy as np
import torch

# Megatron imports tensorboard, which would import tensorflow: six seconds.
sys.modules["tensorflow"] = None
from megatron.core.datasets.indexed_dataset import IndexedDataset, IndexedDatasetBuilder


def read(folder, names):
    for name in names:
        for mmap in (True, False):
            data = IndexedDataset(f"{folder}/{name}", mmap=mmap)
            expected = np.load(f"{folder}/{name}.npy")
            assert data.index.dtype == expected.dtype, (name, data.index.dtype)
            assert data.sequence_lengths.tolist() == [4, 0, 7, 1, 300]
            assert data.document_indices.tolist() == [0, 1, 2, 3, 4, 5]
            ends = np.cumsum(data.sequence_lengths)
            for number, end in enumerate(ends):
                found = data[number]
                assert (found == expected[end - len(found) : end]).all(), (name, number)


def write(folder):
    for dtype in (np.uint16, np.int32, np.int64):
        for multimodal in (False, True):
            name = f"{folder}/{np.dtype(dtype).name}_{multimodal}"
            builder = IndexedDatasetBuilder(f"{name}.bin", dtype=dtype, multimodal=multimodal)
            tokens = torch.arange(312)
            end = 0
            for number, length in enumerate([4, 0, 7, 1, 300]):
                builder.add_item(tokens[end : end + length], number % 2 if multimodal else 0)
                end += length
                for _ in range({0: 2, 2: 1, 4: 1}.get(number, 0)):
                    builder.end_document()
            builder.finalize(f"{name}.idx")


folder, *names = sys.argv[1:]
write(folder)
print("written")
read(folder, names)
print("read")

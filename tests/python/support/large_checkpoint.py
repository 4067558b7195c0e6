"""A checkpoint of 512 MiB in four shards. Each tensor has a different sum."""

import json
import time

import numpy as np

from pagestream import MappedFile

from support.weight_files import entry, weight_file

MIB = 1 << 20
TENSORS = 30
TENSOR_BYTES = 16 * MIB
LARGEST = 28
LARGEST_BYTES = 48 * MIB
TOTAL_BYTES = (TENSORS - 1) * TENSOR_BYTES + LARGEST_BYTES
SHARDS = 4


def name_of(number):
    # The names sort in data order, so a lead predicts the next tensors correctly.
    return f"layers.{number:03}.weight"


def nbytes_of(number):
    return LARGEST_BYTES if number == LARGEST else TENSOR_BYTES


def write(folder):
    """Writes the shards. Element i of tensor n is i + n."""
    counted = np.arange(LARGEST_BYTES // 8)
    for shard, numbers in enumerate(np.array_split(range(TENSORS), SHARDS), 1):
        ends = np.cumsum([nbytes_of(number) for number in numbers]).tolist()
        header = {
            name_of(number): entry("I64", [nbytes_of(number) // 8], end - nbytes_of(number), end)
            for number, end in zip(numbers.tolist(), ends, strict=True)
        }
        with open(folder / f"model-{shard:05}-of-{SHARDS:05}.safetensors", "wb") as file:
            text = json.dumps(header)
            # The padding aligns the data. Misaligned arrays would be copies.
            file.write(weight_file(text + " " * (-len(text) % 8)))
            for number in numbers:
                (counted[: nbytes_of(number) // 8] + number).tofile(file)


def evict(folder):
    """Drops the files from the page cache: a page counts against the group that first read it."""
    for path in folder.iterdir():
        with MappedFile(path) as file:
            # Mapped pages stay, and a thread may still be unmapping earlier views.
            deadline = time.monotonic() + 600
            file.evict()
            while file.residency().fraction > 0.0:
                assert time.monotonic() < deadline
                time.sleep(0.01)
                file.evict()


def is_right(name, total):
    """Returns whether the sum of the tensor with this name is right."""
    number = int(name.split(".")[1])
    count = nbytes_of(number) // 8
    return total == count * (count - 1) // 2 + count * number

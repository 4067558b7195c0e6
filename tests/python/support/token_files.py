"""Token files for tests."""

from __future__ import annotations

import os

import numpy as np
from hypothesis import strategies as st

TOKEN_TYPES = ["u1", "i1", "<u2", "<i2", "<u4", "<i4", "<u8", "<i8"]

# The number of tokens in each file of a corpus, with empty files. Ranges may span several files.
shard_lengths = st.lists(st.integers(0, 12), min_size=1, max_size=6)


def tokens_of(dtype, count, start=0):
    """Returns `count` tokens, as distinct as the type allows, including its largest and smallest value."""
    info = np.iinfo(dtype)
    numbers = (np.arange(start, start + count) * 40_503 % min(int(info.max) + 1, 65_521)).astype(dtype)
    numbers[1::7] = info.max
    numbers[2::7] = info.min
    return numbers


def write_tokens(path, tokens, format="raw"):
    """Writes an array as a token file and returns the path as a str."""
    if format == "npy":
        with open(path, "wb") as file:
            np.lib.format.write_array(file, tokens)
    else:
        tokens.tofile(path)
    return os.fspath(path)


def write_shards(folder, tokens, lengths, format="raw"):
    """Splits an array into files of these lengths."""
    ends = np.cumsum(lengths)
    return [
        write_tokens(os.path.join(folder, f"shard{number}"), tokens[end - length : end], format)
        for number, (end, length) in enumerate(zip(ends, lengths, strict=True))
    ]

"""Writes through torch to read-only arrays, because torch ignores the flag. A read-only page would kill the
process.

Usage: writes_ignore_the_flag.py WEIGHTS, a file whose tensor `vector` has float32 elements.
"""

import sys
import warnings
from pathlib import Path

import numpy as np
import torch

import pagestream
from pagestream.safetensors import safe_open

warnings.filterwarnings("ignore", message="The given NumPy array is not writable")
path = Path(sys.argv[1])
before = path.read_bytes()

weights = pagestream.open_checkpoint(path)
corpus = pagestream.open_tokens(path, dtype="u2", format="raw")
mapped = pagestream.MappedFile(path)
private = pagestream.MappedFile(path, mode="private")
weights["vector"].sum()
arrays = {
    "a tensor": weights["vector"],
    "a part of a tensor": weights["vector"][1:],
    "a stream of views": dict(weights.stream(strategy="mapped"))["vector"],
    "a stream of a part": dict(weights.stream({"vector": np.s_[2:]}, strategy="mapped"))["vector"],
    "a stream of the page cache": dict(weights.stream(strategy="ahead"))["vector"],
    "a tensor in private mode": pagestream.open_checkpoint(path, mmap_mode="private")["vector"],
    "a slice": safe_open(path, "np").get_slice("vector")[1:3],
    "tokens": corpus[4:100].view("i2"),
    "a file": np.frombuffer(mapped, "u1"),
    "a view": np.asarray(mapped.view(9, 100)),
    "a file in private mode": np.frombuffer(private, "u1"),
}
for name, array in arrays.items():
    assert name == "a slice" or not array.flags.writeable, name
    tensor = torch.from_numpy(array)
    tensor.fill_(3)
    assert (array == 3).all(), name
    tensor.mul_(2)
    assert (array == 6).all(), name
assert path.read_bytes() == before
assert mapped.read() == before, "copies come from the file"
assert weights.read("vector").tobytes() in before
print(len(arrays), "kinds of arrays were written")

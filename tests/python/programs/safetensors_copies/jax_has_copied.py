"""Counts the waits for jax in each way to load, and checks that the arrays are ready."""

import sys

import jax

from pagestream.safetensors import safe_open
from pagestream.safetensors.flax import load, load_file

path = sys.argv[1]
waited = []
wait = jax.block_until_ready


def counted(array):
    waited.append(array)
    return wait(array)


jax.block_until_ready = counted
with open(path, "rb") as file:
    content = file.read()
with safe_open(path, "flax") as file:
    arrays = [load_file(path)["a"], load(content)["a"], file.get_tensor("a"), file.get_slice("a")[1:]]
assert len(waited) == len(arrays), len(waited)
assert all(array is done for array, done in zip(arrays, waited, strict=True))
assert all(array.is_ready() for array in arrays)
print("ready")

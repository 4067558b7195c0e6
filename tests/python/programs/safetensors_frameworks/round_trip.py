"""Loads, saves and reloads tensors of a framework in every way."""

import sys
from importlib import import_module

import numpy as np

import pagestream.safetensors as ours
from pagestream.safetensors.numpy import load_file

name, words, path, kind, other = sys.argv[1], sys.argv[2].split(), *sys.argv[3:]
module = import_module(f"pagestream.safetensors.{name}")
expected = load_file(path)
home, _, attribute = kind.rpartition(".")
kind = getattr(import_module(home), attribute)


def check(tensors, what):
    assert sorted(tensors) == sorted(expected), what
    for key, tensor in tensors.items():
        assert isinstance(tensor, kind), (what, key, type(tensor))
        assert tuple(tensor.shape) == expected[key].shape, (what, key)
        if key == "half":
            assert "bfloat16" in str(tensor.dtype), (what, tensor.dtype)
            tensor = module_float(tensor)
        assert np.array_equal(np.asarray(tensor), expected[key].astype("f4")), (what, key)


def module_float(tensor):
    if name == "tensorflow":
        import tensorflow

        return tensorflow.cast(tensor, "float32")
    return tensor.astype("float32" if name in ("flax", "paddle") else import_module("mlx.core").float32)


for word in words:
    for options in ({}, {"backend": "pread"}, {"mmap_mode": "shared"}):
        with ours.safe_open(path, word, **options) as file:
            check(file.get_tensors(), (word, options))
check(module.load_file(path), "load_file")
with open(path, "rb") as file:
    check(module.load(file.read()), "load")
tensors = module.load_file(path)
before = dict(tensors)
check(module.load(module.save(tensors)), "save")
module.save_file(tensors, other, {"k": "v"})
check(module.load_file(other), "save_file")
assert tensors.keys() == before.keys() and all(tensors[key] is before[key] for key in before)
assert ours.safe_open(other, "np").metadata() == {"k": "v"}
print("round trip: well")

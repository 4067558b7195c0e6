"""Puts pagestream's module under upstream's name in `sys.modules` by hand."""

import sys

import torch

import pagestream.safetensors

sys.modules["safetensors"] = pagestream.safetensors
import safetensors
from safetensors.torch import _find_shared_tensors, load_file, save_file, storage_ptr

tensors = {"a": torch.arange(3)}
save_file(tensors, sys.argv[1])
assert torch.equal(load_file(sys.argv[1])["a"], tensors["a"])
assert _find_shared_tensors(tensors) == [{"a"}] and storage_ptr(tensors["a"])
assert safetensors.safe_open is pagestream.safetensors.safe_open
assert not hasattr(safetensors, "nothing") and not hasattr(safetensors.torch, "nothing")
import numpy
from safetensors.numpy import save

assert len(safetensors.deserialize(save({"a": numpy.arange(3)}))) == 1
assert sys.modules["safetensors"] is pagestream.safetensors
print(safetensors.__version__)

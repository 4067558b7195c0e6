"""Imports the torch module for the first time while pagestream is installed, and saves a file."""

import sys

import pagestream.safetensors as ours

ours.install()
import torch
from safetensors.torch import _find_shared_tensors, load_file, save_file, storage_ptr

tensors = {"a": torch.arange(3)}
save_file(tensors, sys.argv[1])
assert load_file.__module__ == "pagestream.safetensors.torch"
assert torch.equal(load_file(sys.argv[1])["a"], tensors["a"])
assert _find_shared_tensors(tensors) == [{"a"}] and storage_ptr(tensors["a"])
ours.uninstall()
from safetensors.torch import load_file as theirs

assert theirs.__module__ == "safetensors.torch"
assert torch.equal(theirs(sys.argv[1])["a"], tensors["a"])
print("well")

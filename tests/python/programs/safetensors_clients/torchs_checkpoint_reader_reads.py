"""torch's checkpoint reader reads through pagestream."""

import sys

from installed import import_clients, opened

import_clients("torch.distributed.checkpoint")
import torch
import torch.distributed.checkpoint as dcp
from safetensors.torch import save_file

tensors = {"a": torch.randn(64, 8), "b": torch.arange(5.0)}
save_file(tensors, sys.argv[1] + "/model.safetensors")
state = {name: torch.zeros_like(tensor) for name, tensor in tensors.items()}
dcp.load(state, storage_reader=dcp.HuggingFaceStorageReader(sys.argv[1]), no_dist=True)
assert all(torch.equal(state[name], tensor) for name, tensor in tensors.items())
assert opened
print("well")

"""The first steps of a PyTorch user."""

import os
import sys

import numpy as np
import torch

import pagestream
from pagestream.safetensors.torch import load_file, save_file

os.chdir(sys.argv[1])

pagestream.write_tokens("torch.bin", np.arange(5_000), dtype="uint16")
with pagestream.torch.TokenLoader("torch.bin", sequence_length=64, batch_size=4) as loader:
    x, y = next(loader)
    assert x.dtype == torch.int64
    assert torch.equal(x[:, 1:], y[:, :-1])

weights = {"weight": torch.arange(600, dtype=torch.bfloat16).reshape(20, 30)}
save_file(weights, "torch.safetensors")
for found in (load_file("torch.safetensors"), pagestream.torch.load_state_dict("torch.safetensors")):
    assert torch.equal(found["weight"], weights["weight"])
module = torch.nn.Linear(30, 20, bias=False, dtype=torch.bfloat16)
pagestream.torch.load_into(module, "torch.safetensors")
assert torch.equal(module.weight, weights["weight"])

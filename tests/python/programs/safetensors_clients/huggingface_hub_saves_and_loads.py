"""huggingface_hub saves a model and loads it through pagestream."""

import sys

from installed import import_clients, opened

import_clients("huggingface_hub")
import torch
from huggingface_hub import load_torch_model, save_torch_model

model = torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.Linear(8, 2))
save_torch_model(model, sys.argv[1])
again = torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.Linear(8, 2))
load_torch_model(again, sys.argv[1], strict=True)
for name, tensor in model.state_dict().items():
    assert torch.equal(again.state_dict()[name], tensor)
assert opened
print("well")

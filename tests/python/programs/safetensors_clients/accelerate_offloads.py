"""accelerate dispatches a model through pagestream, with some layers offloaded to disk."""

import os
import sys

from installed import import_clients, names_opened

import_clients("accelerate")
import torch
from accelerate import init_empty_weights, load_checkpoint_and_dispatch
from huggingface_hub import save_torch_model


class Model(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = torch.nn.ModuleList(torch.nn.Linear(64, 64) for _ in range(4))

    def forward(self, x):
        for layer in self.layers:
            x = torch.tanh(layer(x))
        return x


torch.manual_seed(0)
model, x = Model().eval(), torch.randn(3, 64)
save_torch_model(model, sys.argv[1], max_shard_size="40KB")
with init_empty_weights():
    empty = Model()
device_map = {"layers.0": "cpu", "layers.1": "disk", "layers.2": "cpu", "layers.3": "disk"}
loaded = load_checkpoint_and_dispatch(empty, sys.argv[1], device_map=device_map, offload_folder=sys.argv[2])
assert torch.equal(loaded.eval()(x), model(x))
assert str(loaded.layers[1].weight.device) == "meta"
shards = {name for name in os.listdir(sys.argv[1]) if name.endswith(".safetensors")}
assert len(shards) > 1 and shards <= names_opened(), names_opened()
print("well")

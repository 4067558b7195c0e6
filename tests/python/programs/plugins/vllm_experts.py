"""vLLM's filter of experts, its prefixes, and its kind of tensors stay as they are."""

import sys

import torch
from serving import vllm

folder = sys.argv[1]
loader, _ = vllm(folder)
loader.local_expert_ids = {0}
weights = dict(loader._get_weights_iterator(loader.Source(folder, None, prefix="draft.")))
layers = {name.split(".")[3] for name in weights if ".layers." in name}
assert layers == {"0"}, layers
assert all(name.startswith("draft.") for name in weights)
assert all(type(each) is torch.Tensor and each.device.type == "cpu" for each in weights.values())
print("ok")

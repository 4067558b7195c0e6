"""Writes the file of a large adapter. Prints the digest of its tensors."""

import sys

import torch
from loading import digest
from safetensors.torch import save_file

tensors = {
    f"base_model.model.layers.{layer}.q_proj.lora_{side}.weight": torch.randn(1024, 256)
    for layer in range(12)
    for side in "AB"
}
save_file(tensors, sys.argv[1] + "/adapter_model.safetensors")
print(digest(tensors))

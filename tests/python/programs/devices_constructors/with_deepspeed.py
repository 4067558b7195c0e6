"""Loads inside deepspeed's own contexts, which replace torch's constructors while a model is built.

Usage: with_deepspeed.py FILE FOLDER. The tensor `matrix` has 32-bit elements.
"""

import os
import sys
from pathlib import Path

import deepspeed
import torch
import torch.distributed as dist

from pagestream.safetensors import safe_open
from pagestream.safetensors.torch import load_file
from pagestream.torch import load_state_dict, stream_checkpoint

path, folder = sys.argv[1], Path(sys.argv[2])

STAGE_3 = {"train_batch_size": 1, "zero_optimization": {"stage": 3}, "bf16": {"enabled": True}}


def load():
    for options in ({}, {"mmap_mode": "read"}, {"copy": True}):
        with safe_open(path, "pt", **options) as file:
            yield file.get_tensor("matrix")
            yield file.get_slice("matrix")[:, ::1]
        yield load_file(path, **options)["matrix"]
    for strategy in ("mapped", "ahead", "pread", "direct"):
        yield dict(stream_checkpoint(path, device="cpu", strategy=strategy))["matrix"]
    yield load_state_dict(path)["matrix"]


expected = load_file(path)["matrix"].clone()
# deepspeed would otherwise compile its own collective.
deepspeed.ops.__compatible_ops__["deepspeed_shm_comm"] = False
os.environ |= {"LOCAL_RANK": "0", "RANK": "0", "WORLD_SIZE": "1"}
dist.init_process_group("gloo", init_method=f"file://{folder}/store", rank=0, world_size=1)
for context in (
    deepspeed.zero.Init(config_dict_or_path=STAGE_3),
    deepspeed.OnDevice(dtype=torch.float16, device="meta"),
):
    with context:
        replaced = torch.empty(2)
        found = list(load())
    assert replaced.dtype != torch.float32, "deepspeed replaces torch.empty no longer"
    for tensor in found:
        assert (tensor.dtype, tensor.device.type) == (torch.float32, "cpu"), (tensor.dtype, tensor.device)
        assert torch.equal(tensor, expected)
dist.destroy_process_group()
print("loaded", len(found), "tensors in each context of deepspeed", deepspeed.__version__)

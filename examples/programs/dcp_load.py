"""A checkpoint of Hugging Face's form, loaded by `torch.distributed.checkpoint` into an FSDP2 model.

    torchrun --nproc-per-node=2 dcp_load.py folder-of-safetensors

The only change to a program is the reader: each byte that any rank needs is read by one of them, and sent to
the others.
"""

from __future__ import annotations

import argparse

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.checkpoint.state_dict_loader import load
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor

from pagestream import open_checkpoint
from pagestream.torch import HuggingFaceStorageReader


def main() -> None:
    """Loads into shards, and prints what each rank holds."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder")
    folder = parser.parse_args().folder

    dist.init_process_group("gloo")
    mesh = init_device_mesh("cpu", (dist.get_world_size(),))
    with open_checkpoint(folder) as weights:
        # A stack of linear layers of the checkpoint's shapes: `0.weight`, `1.weight`, …
        shapes = [weights.info(f"{number}.weight").shape for number in range(len(weights))]
    model = nn.Sequential(*(nn.Linear(columns, rows, bias=False) for rows, columns in shapes))
    fully_shard(model, mesh=mesh)

    state = model.state_dict()
    load(state, storage_reader=HuggingFaceStorageReader(folder))
    model.load_state_dict(state)

    shards = [parameter.to_local() for parameter in model.parameters() if isinstance(parameter, DTensor)]
    held = sum(shard.numel() for shard in shards)
    total = torch.stack([shard.double().sum() for shard in shards]).sum()
    dist.all_reduce(total)
    print(f"rank {dist.get_rank()} holds {held:,} elements; the sum of all is {total.item():.6g}")
    dist.barrier()  # none leaves while another still talks to it
    dist.destroy_process_group()


if __name__ == "__main__":
    main()

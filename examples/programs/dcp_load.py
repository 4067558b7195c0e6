"""A Hugging Face checkpoint, loaded by `torch.distributed.checkpoint` into shards.

    torchrun --nproc-per-node=2 dcp_load.py folder-of-safetensors

The only change to a program is the reader: one rank reads each byte that any rank needs, and sends it to the
other ranks. Here, each tensor of the folder becomes a DTensor whose rows are divided among the ranks, as in
FSDP2. A program with a model passes `model.state_dict()` instead.
"""

from __future__ import annotations

import argparse
import os

import torch
import torch.distributed as dist
from torch.distributed.checkpoint.metadata import TensorStorageMetadata
from torch.distributed.checkpoint.state_dict_loader import load
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor, Shard
from torch.distributed.tensor import empty as empty_dtensor

from pagestream.errors import SafetensorError
from pagestream.torch import HuggingFaceStorageReader


def main() -> None:
    """Loads into shards, and prints the number of elements on each rank."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("folder", help="a folder of .safetensors files")
    folder = parser.parse_args().folder
    reader = HuggingFaceStorageReader(folder)
    try:
        facts = reader.read_metadata().state_dict_metadata
    except (OSError, SafetensorError) as error:
        parser.error(str(error))
    if not facts:
        parser.error(f"{folder} has no .safetensors files")
    if "RANK" not in os.environ:
        parser.error(f"it runs on ranks: torchrun --nproc-per-node=2 dcp_load.py {folder}")

    dist.init_process_group("gloo")
    mesh = init_device_mesh("cpu", (dist.get_world_size(),))
    state: dict[str, torch.Tensor] = {}
    for name, fact in facts.items():
        assert isinstance(fact, TensorStorageMetadata)
        shape, dtype = fact.size, fact.properties.dtype
        # A scalar has no rows to divide, so each rank has all of it.
        state[name] = (
            empty_dtensor(shape, dtype=dtype, device_mesh=mesh, placements=[Shard(0)])
            if shape
            else torch.empty(shape, dtype=dtype)
        )
    load(state, storage_reader=reader)

    shards = [tensor.to_local() for tensor in state.values() if isinstance(tensor, DTensor)]
    held = sum(shard.numel() for shard in shards)
    total = sum((shard.double().sum() for shard in shards), torch.zeros((), dtype=torch.float64))
    dist.all_reduce(total)
    print(f"rank {dist.get_rank()} holds {held:,} elements; the sum of all is {total.item():.6g}")
    dist.barrier()  # a rank must not exit while another one still talks to it
    dist.destroy_process_group()


if __name__ == "__main__":
    main()

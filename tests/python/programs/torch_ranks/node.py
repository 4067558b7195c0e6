"""A rank that loads from its own mounts: ``node.py FOLDER…``.

Each folder is named after a way to load, and contains one mount for each rank.
"""

import sys
from pathlib import Path

import numpy as np
import torch
import torch.distributed as dist

from pagestream import open_checkpoint
from pagestream.torch import stream_checkpoint

dist.init_process_group("gloo")
rank, size = dist.get_rank(), dist.get_world_size()


def share(length):
    return slice(length * rank // size, length * (rank + 1) // size)


def half(part):
    return slice(part.start, (part.start + part.stop) // 2)


def is_right(name, tensor):
    """Returns whether each tensor is filled with its number."""
    return bool((tensor == int(name[1:])).all())


def load_by_readers(mine):
    # Imported here because they take a second.
    import torch.distributed.checkpoint as dcp
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor import Shard
    from torch.distributed.tensor import empty as distributed_empty

    from pagestream.torch import HuggingFaceStorageReader

    mesh = init_device_mesh("cpu", (size,))
    with open_checkpoint(mine, ahead=False) as weights:
        shapes = {name: weights.info(name).shape for name in weights}
    # Half of the tensors are sharded by rows, half by columns.
    state = {
        name: distributed_empty(
            *shape, dtype=torch.uint8, device_mesh=mesh, placements=[Shard(int(name[1:]) % 2)]
        )
        for name, shape in shapes.items()
    }
    dcp.load(state, storage_reader=HuggingFaceStorageReader(mine))
    assert all(is_right(name, tensor.to_local()) for name, tensor in state.items())


def load(mine, plan):
    stream = stream_checkpoint(mine, device="cpu", plan=plan, process_group=dist.group.WORLD)
    assert all(is_right(name, tensor) for name, tensor in stream)


PLANS = {
    "whole": lambda info: None,
    "rows": lambda info: np.s_[share(info.shape[0])],
    "columns": lambda info: np.s_[:, share(info.shape[1])],
    "rows in turn": lambda info: np.s_[rank::size],
    "half of the rows in turn": lambda info: np.s_[rank :: 2 * size],
    "columns with gaps": lambda info: np.s_[:, half(share(info.shape[1]))],
}
for folder in map(Path, sys.argv[1:]):
    mine = folder / str(rank)
    if folder.name == "readers":
        load_by_readers(mine)
    else:
        load(mine, PLANS[folder.name])
dist.destroy_process_group()

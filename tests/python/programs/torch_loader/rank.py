"""One rank of a process group reads batches, and writes their tokens and its state to a file."""

import json
import sys

import torch.distributed as dist

from pagestream.torch import TokenLoader

path, state_path, steps, out = sys.argv[1:]
dist.init_process_group("gloo")
loader = TokenLoader(path, sequence_length=8, batch_size=3, epochs=1, drop_last=False, seed=5)
assert (loader.rank, loader.world_size) == (dist.get_rank(), dist.get_world_size())
if state_path != "-":
    loader.load_state_dict(json.load(open(state_path)))
starts = []
for step, (x, y) in enumerate(loader):
    starts += x[:, 0].tolist()
    if step + 1 == int(steps):
        break
json.dump({"starts": starts, "state": loader.state_dict()}, open(f"{out}.{dist.get_rank()}", "w"))
loader.close()
dist.destroy_process_group()

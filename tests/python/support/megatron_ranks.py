"""Ranks of Megatron's parallel state that read a file of windows of 16 tokens with the recipe.

``megatron_ranks.py FILE OUT``: two ranks read five steps from the beginning, and then one rank resumes from
their state and reads to the end. Each rank is a fork of this process, because Megatron takes seconds to
import. Global batches have four windows for any number of ranks. Each rank writes its windows and its final
state to ``OUT.<ranks>.<rank>`` as JSON.
"""

from __future__ import annotations

import json
import multiprocessing
import sys

import torch.distributed

from pagestream.torch import TokenLoader

# Megatron imports tensorboard, which would import tensorflow: six seconds.
sys.modules["tensorflow"] = None
from megatron.core import parallel_state  # noqa: E402
from megatron.core.rerun_state_machine import RerunDataIterator  # noqa: E402

from megatron_external import PretrainingBatches  # noqa: E402


def read(rank, world_size, store, path, state, out):
    torch.distributed.init_process_group("gloo", f"file://{store}", rank=rank, world_size=world_size)
    parallel_state.initialize_model_parallel()
    rank = parallel_state.get_data_parallel_rank()
    world_size = parallel_state.get_data_parallel_world_size()
    options = {"batch_size": 4 // world_size, "rank": rank, "world_size": world_size}
    loader = TokenLoader(path, sequence_length=16, epochs=1, drop_last=False, **options)
    batches = PretrainingBatches(loader)
    steps = 5
    if state is not None:
        batches.restore_state(state)
        steps = len(loader) - steps
    iterator = RerunDataIterator(batches)  # Megatron wraps an external loader in this
    seen = []
    for _ in range(steps):
        batch = next(iterator)
        iterator.advance()
        seen += torch.cat([batch["tokens"], batch["labels"][:, -1:]], 1).tolist()
    with open(f"{out}.{world_size}.{rank}", "w") as file:
        json.dump({"seen": seen, "state": iterator.iterable.save_state()}, file)
    loader.close()
    parallel_state.destroy_model_parallel()
    torch.distributed.destroy_process_group()


def run(world_size, path, state, out):
    """Starts the ranks and returns the state of the last one."""
    context = multiprocessing.get_context("fork")
    arguments = (world_size, f"{out}.{world_size}.store", path, state, out)
    ranks = [context.Process(target=read, args=(rank, *arguments)) for rank in range(world_size)]
    for each in ranks:
        each.start()
    for each in ranks:
        each.join()
    assert [each.exitcode for each in ranks] == [0] * world_size
    with open(f"{out}.{world_size}.{world_size - 1}") as file:
        return json.load(file)["state"]


if __name__ == "__main__":
    path, out = sys.argv[1:]
    run(1, path, run(2, path, None, out), out)

"""One rank of Megatron's parallel state reads a file of windows of 16 tokens by the recipe.

Run by torchrun as ``megatron_rank.py FILE STATE OUT``: from the beginning for five steps where STATE is
``-``, else from there to the end. Global batches have four windows, whatever the number of ranks. What was
read and the state afterwards go to ``OUT.<rank>`` as JSON.
"""

from __future__ import annotations

import json
import sys

import torch.distributed

from pagestream.torch import TokenLoader

# tensorboard, which Megatron imports, would import it: six seconds.
sys.modules["tensorflow"] = None
from megatron.core import parallel_state  # noqa: E402
from megatron.core.rerun_state_machine import RerunDataIterator  # noqa: E402

from megatron_external import PretrainingBatches  # noqa: E402


def main(path, state_path, out):
    torch.distributed.init_process_group("gloo")
    parallel_state.initialize_model_parallel()
    rank = parallel_state.get_data_parallel_rank()
    world_size = parallel_state.get_data_parallel_world_size()
    options = {"batch_size": 4 // world_size, "rank": rank, "world_size": world_size}
    loader = TokenLoader(path, sequence_length=16, epochs=1, drop_last=False, **options)
    batches = PretrainingBatches(loader)
    steps = 5
    if state_path != "-":
        with open(state_path) as file:
            batches.restore_state(json.load(file))
        steps = len(loader) - steps
    iterator = RerunDataIterator(batches)  # what Megatron makes of an external loader
    seen = []
    for _ in range(steps):
        batch = next(iterator)
        iterator.advance()
        seen += torch.cat([batch["tokens"], batch["labels"][:, -1:]], 1).tolist()
    with open(f"{out}.{rank}", "w") as file:
        json.dump({"seen": seen, "state": iterator.iterable.save_state()}, file)
    loader.close()
    parallel_state.destroy_model_parallel()
    torch.distributed.destroy_process_group()


if __name__ == "__main__":
    main(*sys.argv[1:])

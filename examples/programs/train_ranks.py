"""Training with several processes, and resuming with another number of processes.

    torchrun --nproc-per-node=2 train_ranks.py tokens.bin --steps 20
    torchrun --nproc-per-node=3 train_ranks.py tokens.bin --steps 20

The second run resumes where the first one stopped: the state of the loader counts the samples that the job
has seen, for any number of ranks. No window is lost or repeated.
"""

from __future__ import annotations

import argparse
import json
import os
from pathlib import Path

import numpy as np
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from pagestream import open_tokens
from pagestream.errors import FormatError
from pagestream.torch import TokenLoader

SEQUENCE_LENGTH, BATCH_SIZE, WIDTH = 32, 4, 32
# A larger embedding table would be too large for an example.
MOST_BYTES_OF_TOKENS = 2


def main() -> None:
    """Trains, saves, and prints the windows that were seen."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("tokens", help="a token file, such as nanoGPT's train.bin")
    parser.add_argument("--steps", type=int, default=20, help="training steps (20)")
    parser.add_argument("--checkpoint", default="checkpoint", help="the folder of the state (checkpoint)")
    parser.add_argument("--vocabulary", type=int, help="different tokens (default: all of the file's type)")
    arguments = parser.parse_args()
    try:
        corpus = open_tokens(arguments.tokens)
    except (OSError, FormatError, ValueError) as error:
        parser.error(str(error))
    if arguments.vocabulary is None and corpus.dtype.itemsize > MOST_BYTES_OF_TOKENS:
        parser.error(
            f"the tokens are {corpus.dtype}: --vocabulary has to say how many different ones there are"
        )
    vocabulary = arguments.vocabulary or int(np.iinfo(corpus.dtype).max) + 1
    if "RANK" not in os.environ:
        parser.error(f"it runs on ranks: torchrun --nproc-per-node=2 train_ranks.py {arguments.tokens}")

    dist.init_process_group("gloo")
    torch.manual_seed(0)
    model = DistributedDataParallel(
        nn.Sequential(nn.Embedding(vocabulary, WIDTH), nn.Linear(WIDTH, vocabulary))
    )
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    folder = Path(arguments.checkpoint)
    try:
        # Rank and world size come from torch.distributed.
        loader = TokenLoader(
            corpus, sequence_length=SEQUENCE_LENGTH, batch_size=BATCH_SIZE, seed=1, epochs=None
        )
        if (folder / "loader.json").exists():
            loader.load_state_dict(json.loads((folder / "loader.json").read_text()))
            model.load_state_dict(torch.load(folder / "model.pt", weights_only=True))
    except (ValueError, RuntimeError) as error:  # too few tokens, or a state of other data or another model
        parser.error(str(error))
    begun = loader.state_dict()["samples_consumed"]

    loss = torch.tensor(0.0)
    for _ in range(arguments.steps):
        x, y = next(loader)
        largest = int(torch.maximum(x.max(), y.max()))
        if largest >= vocabulary:
            parser.error(f"{arguments.tokens} has the token {largest}; --vocabulary must be larger")
        loss = nn.functional.cross_entropy(model(x).flatten(0, 1), y.flatten())
        optimizer.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]
        optimizer.step()

    state = loader.state_dict()
    if dist.get_rank() == 0:
        folder.mkdir(exist_ok=True)
        torch.save(model.state_dict(), folder / "model.pt")
        (folder / "loader.json").write_text(json.dumps(state))
        print(
            f"{dist.get_world_size()} ranks: samples {begun} to {state['samples_consumed']}, loss {loss:.3f}"
        )
    loader.close()
    dist.barrier()  # a rank must not exit while another one still talks to it
    dist.destroy_process_group()


if __name__ == "__main__":
    main()

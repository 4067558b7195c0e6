"""Training by several processes, and going on with another number of them.

    torchrun --nproc-per-node=2 train_ranks.py tokens.bin --steps 20
    torchrun --nproc-per-node=3 train_ranks.py tokens.bin --steps 20

The second run goes on where the first one stopped: the state of the loader says how many samples the job has
seen, whatever the number of ranks. No window is lost, and none comes twice.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from pagestream.torch import TokenLoader

SEQUENCE_LENGTH, BATCH_SIZE, VOCABULARY, WIDTH = 32, 4, 256, 32


def main() -> None:
    """Trains, saves, and prints what was seen."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("tokens")
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--checkpoint", default="checkpoint")
    arguments = parser.parse_args()

    dist.init_process_group("gloo")
    torch.manual_seed(0)
    model = DistributedDataParallel(
        nn.Sequential(nn.Embedding(VOCABULARY, WIDTH), nn.Linear(WIDTH, VOCABULARY))
    )
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    # Rank and world size come from torch.distributed.
    loader = TokenLoader(arguments.tokens, sequence_length=SEQUENCE_LENGTH, batch_size=BATCH_SIZE, seed=1)

    folder = Path(arguments.checkpoint)
    if (folder / "loader.json").exists():
        loader.load_state_dict(json.loads((folder / "loader.json").read_text()))
        model.load_state_dict(torch.load(folder / "model.pt", weights_only=True))
    begun = loader.state_dict()["samples_consumed"]

    loss = torch.tensor(0.0)
    for _ in range(arguments.steps):
        x, y = next(loader)
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
    dist.destroy_process_group()


if __name__ == "__main__":
    main()

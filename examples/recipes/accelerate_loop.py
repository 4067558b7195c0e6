"""A training loop with Hugging Face `accelerate`, whose checkpoints hold the loader.

Do not pass a `TokenLoader` to `accelerator.prepare`: the loader takes its part of each
batch itself.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from pagestream.torch import TokenLoader

if TYPE_CHECKING:
    from os import PathLike

    from accelerate import Accelerator


def token_loader(
    accelerator: Accelerator,
    path: str | PathLike[str],
    *,
    sequence_length: int,
    batch_size: int,
    seed: int,
) -> TokenLoader:
    """Returns a loader for this process, which `accelerator.save_state` saves."""
    loader = TokenLoader(
        path,
        sequence_length=sequence_length,
        batch_size=batch_size,
        seed=seed,
        device=accelerator.device,
        rank=accelerator.process_index,
        world_size=accelerator.num_processes,
    )
    accelerator.register_for_checkpointing(loader)
    return loader


def train_epoch(
    accelerator: Accelerator,
    model: torch.nn.Module,
    optimizer: torch.optim.Optimizer,
    loader: TokenLoader,
) -> None:
    """Trains for one epoch, or for the rest of it after `accelerator.load_state`."""
    for x, y in loader:
        with accelerator.accumulate(model):
            loss = torch.nn.functional.cross_entropy(
                model(x).flatten(0, 1), y.flatten()
            )
            accelerator.backward(loss)
            optimizer.step()
            optimizer.zero_grad()

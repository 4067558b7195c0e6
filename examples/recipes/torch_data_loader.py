"""Windows of token files through PyTorch's `DataLoader`, and torchdata's.

Use these if your code needs a `DataLoader`. `TokenLoader` is faster than both, and its
state fits any number of ranks.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from torch.utils.data import DataLoader
from torchdata.stateful_dataloader import StatefulDataLoader

from pagestream.torch import DistributedTokenSampler, TokenDataset

if TYPE_CHECKING:
    from os import PathLike


def data_loader(
    path: str | PathLike[str],
    *,
    sequence_length: int,
    batch_size: int,
    num_workers: int = 0,
    num_replicas: int | None = None,
    rank: int | None = None,
) -> DataLoader[Any]:
    """Returns shuffled batches ``(x, y)`` of this rank's windows, each once per epoch.

    Call ``loader.sampler.set_epoch(n)`` before each epoch, as with torch's
    `DistributedSampler`. Without ``torch.distributed``, pass ``num_replicas=1`` and
    ``rank=0``.
    """
    # By default, a dataset has a stride of 1 and yields every possible window. The
    # windows of this dataset share no input.
    dataset = TokenDataset(path, sequence_length, stride=sequence_length)
    # torch's own samplers store a list of all numbers. This one computes each number
    # on demand.
    sampler = DistributedTokenSampler(dataset, num_replicas, rank, drop_last=True)
    return DataLoader(
        dataset, batch_size=batch_size, sampler=sampler, num_workers=num_workers
    )


def stateful_data_loader(
    path: str | PathLike[str],
    *,
    sequence_length: int,
    batch_size: int,
    num_workers: int = 0,
    num_replicas: int | None = None,
    rank: int | None = None,
) -> StatefulDataLoader[Any]:
    """Adds `state_dict` at any step. Resume it with the same number of ranks."""
    dataset = TokenDataset(path, sequence_length, stride=sequence_length)
    sampler = DistributedTokenSampler(dataset, num_replicas, rank, drop_last=True)
    return StatefulDataLoader(
        dataset, batch_size=batch_size, sampler=sampler, num_workers=num_workers
    )

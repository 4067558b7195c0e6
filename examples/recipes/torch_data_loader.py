"""Windows of token files through PyTorch's `DataLoader`, and torchdata's.

`TokenLoader` is faster than either and its state fits any number of ranks; this is for
code that wants a `DataLoader`.
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
    """Batches ``(x, y)`` of this rank's windows, shuffled, each once an epoch.

    Call ``loader.sampler.set_epoch(n)`` before each epoch, as with torch's
    `DistributedSampler`. Without ``torch.distributed`` pass ``num_replicas=1, rank=0``.
    """
    # A dataset's stride is 1 by default: every window there is. This one shares no
    # input between them.
    dataset = TokenDataset(path, sequence_length, stride=sequence_length)
    # torch's own samplers hold a list of all numbers; this one computes them as it
    # goes.
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
    """The same with `state_dict` at any step. `load_state_dict` needs as many ranks."""
    dataset = TokenDataset(path, sequence_length, stride=sequence_length)
    sampler = DistributedTokenSampler(dataset, num_replicas, rank, drop_last=True)
    return StatefulDataLoader(
        dataset, batch_size=batch_size, sampler=sampler, num_workers=num_workers
    )

"""`DistributedTokenSampler`: torch's `DistributedSampler` without its list of all indices."""

from __future__ import annotations

import operator
from collections.abc import Iterator, Sized
from typing import Any

from torch.utils.data import DistributedSampler

from pagestream import _native
from pagestream._common.checks import at_least
from pagestream._common.public import set_module
from pagestream._common.ranks import check_unchanged, of_this_process
from pagestream.errors import StateMismatchError
from pagestream.loading.state import require_state

__all__ = ["DistributedTokenSampler"]

# Number of indices per native call.
_CHUNK = 1024


@set_module("pagestream.torch")
class DistributedTokenSampler(DistributedSampler[int]):
    """A replacement for ``torch.utils.data.DistributedSampler`` with the same arguments and counts.

    It is a subclass of torch's sampler, because Lightning replaces other samplers. In a single process, with
    ``num_replicas=1, rank=0``, it replaces the ``RandomSampler`` that ``shuffle=True`` of a `DataLoader`
    creates: it yields each index once per epoch, without a permutation in memory.

    The order of an epoch is a permutation that is computed on the fly, so a sampler of any length takes no
    memory and starts at once. Rank *r* of *w* takes the places *r*, *r + w*, *r + 2w*, …. Without
    ``drop_last``, the order wraps around until all ranks have the same number of indices. With it, the
    remainder is dropped.

    `state_dict` returns the position in the epoch. It is equal on all ranks that have yielded equally many
    indices. torchdata's ``StatefulDataLoader`` saves and restores it.

    Args:
        dataset: Any object with a length.
        num_replicas: The number of ranks. None means the number from ``torch.distributed``, if it is
            initialised, otherwise from the launcher, for example torchrun's ``WORLD_SIZE``. Pass 1, and 0 as
            the rank, to shuffle in a single process.
        rank: This rank. None means the rank from ``torch.distributed``, otherwise from the launcher.
        shuffle: Whether to permute.
        seed: Equal on all ranks.
        drop_last: See above.

    Raises:
        ValueError: The rank is out of range, a variable is not a number, or the ranks are unknown, as with
            torch's own sampler.

    Examples:
        >>> from pagestream.torch import DistributedTokenSampler
        >>> list(DistributedTokenSampler(range(5), num_replicas=2, rank=1, shuffle=False))
        [1, 3, 0]
        >>> plain = DistributedTokenSampler(range(10**12), num_replicas=1, rank=0)  # no list of indices
        >>> next(iter(plain)) < len(plain)
        True
    """

    def __init__(
        self,
        dataset: Sized,
        num_replicas: int | None = None,
        rank: int | None = None,
        shuffle: bool = True,  # noqa: FBT001, FBT002 - torch's signature
        seed: int = 0,
        drop_last: bool = False,  # noqa: FBT001, FBT002 - torch's signature
    ) -> None:
        # Skip the base's initialiser: it asks for a process group, and sets attributes that are computed
        # here.
        self._is_rank_derived = num_replicas is None and rank is None
        if num_replicas is None or rank is None:
            found = of_this_process()
            if found is None:
                message = (
                    "torch.distributed is not initialised, and no launcher names the ranks: call "
                    "init_process_group first, or pass num_replicas=1 and rank=0 for one process"
                )
                raise ValueError(message)
            own, ranks = found
            num_replicas = ranks if num_replicas is None else num_replicas
            rank = own if rank is None else rank
        if not 0 <= rank < num_replicas:
            message = f"rank {rank} of {num_replicas}; rank must be at least 0 and below num_replicas"
            raise ValueError(message)
        self.dataset = dataset  # type: ignore[assignment]
        self.num_replicas = operator.index(num_replicas)
        self.rank = operator.index(rank)
        self.shuffle = shuffle
        self.seed = at_least(0, "seed", seed)
        self.drop_last = drop_last
        self.epoch = 0
        self._length = len(dataset)
        self._yielded = 0
        self._resume = False

    @property
    def num_samples(self) -> int:  # type: ignore[override]
        """The number of indices of each rank per epoch."""
        if self.drop_last:
            return self._length // self.num_replicas
        return -(-self._length // self.num_replicas)

    @property
    def total_size(self) -> int:  # type: ignore[override]
        """The total number of indices of all ranks."""
        return self.num_samples * self.num_replicas

    def __len__(self) -> int:
        """Returns the number of indices of each rank per epoch."""
        return self.num_samples

    def __iter__(self) -> Iterator[int]:
        """Returns this rank's indices, starting at the loaded position if a state was just loaded.

        Raises:
            RuntimeError: The process group was initialised after the sampler, and has other ranks.
        """
        if self._is_rank_derived:
            check_unchanged(self.rank, self.num_replicas)
            self._is_rank_derived = False
        start = self._yielded if self._resume else 0
        self._resume = False
        self._yielded = start
        return self._indices(start)

    def _indices(self, start: int) -> Iterator[int]:
        # Padding continues from the beginning of the order.
        places = range(start * self.num_replicas + self.rank, self.total_size, self.num_replicas)
        for first in range(0, len(places), _CHUNK):
            chunk = places[first : first + _CHUNK]
            if self.shuffle:
                order = (self._length, self.seed, self.epoch)
                indices = _native.permuted(*order, chunk.start, chunk.step, len(chunk))
            else:
                indices = [place % self._length for place in chunk]
            for index in indices:
                self._yielded += 1
                yield index

    def set_epoch(self, epoch: int) -> None:
        """Switches to the order of an epoch. Call it before each epoch, with the same number on all ranks.

        Args:
            epoch: The epoch's number, at least 0 and below 2**63.

        Examples:
            >>> from pagestream.torch import DistributedTokenSampler
            >>> sampler = DistributedTokenSampler(range(1000), 1, 0)
            >>> first = list(sampler)
            >>> sampler.set_epoch(1)
            >>> first == list(sampler), sorted(first) == sorted(sampler)
            (False, True)
        """
        epoch = at_least(0, "epoch", epoch)
        if epoch != self.epoch:
            # A loaded position is valid only for its epoch.
            self._yielded, self._resume = 0, False
        self.epoch = epoch

    def state_dict(self) -> dict[str, Any]:
        """Returns the position as plain numbers.

        Returns:
            A dict for `load_state_dict`. ``samples_consumed`` counts the indices of all ranks, as in
            `TokenLoader.state_dict`.

        Examples:
            >>> from pagestream.torch import DistributedTokenSampler
            >>> sampler = DistributedTokenSampler(range(10), 1, 0, shuffle=False)
            >>> indices = iter(sampler)
            >>> next(indices), next(indices), sampler.state_dict()["samples_consumed"]
            (0, 1, 2)
        """
        consumed = self._yielded * self.num_replicas
        return {**self._settings(), "epoch": self.epoch, "samples_consumed": consumed}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Makes the next iteration continue from a saved state.

        Args:
            state: A state from `state_dict`, of any rank.

        Raises:
            StateMismatchError: `state` is not a state, or has other settings; the message lists them.

        Examples:
            >>> from pagestream.torch import DistributedTokenSampler
            >>> sampler = DistributedTokenSampler(range(5), 1, 0, shuffle=False)
            >>> sampler.load_state_dict({**sampler.state_dict(), "samples_consumed": 3})
            >>> list(sampler)
            [3, 4]
        """
        found = require_state(state)
        for name, value in self._settings().items():
            if found.get(name) != value:
                message = f"the state was taken with {name} {found.get(name)!r}, but here it is {value!r}"
                raise StateMismatchError(message)
        try:
            epoch = at_least(0, "epoch", found.get("epoch"))
            consumed = at_least(0, "samples_consumed", found.get("samples_consumed"))
        except (TypeError, ValueError) as error:
            message = f"this is no state of a sampler: {error}"
            raise StateMismatchError(message) from None
        if consumed > self.total_size or consumed % self.num_replicas:
            message = (
                f"samples_consumed is {consumed} in the state; it must be a multiple of num_replicas "
                f"({self.num_replicas}) and at most {self.total_size}"
            )
            raise StateMismatchError(message)
        self.epoch = epoch
        self._yielded, self._resume = consumed // self.num_replicas, True

    def _settings(self) -> dict[str, Any]:
        return {
            "version": _native.ORDER_VERSION,
            "length": self._length,
            "num_replicas": self.num_replicas,
            "shuffle": self.shuffle,
            "seed": self.seed,
            "drop_last": self.drop_last,
        }

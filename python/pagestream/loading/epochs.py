"""The parts of a stream for ``for`` loops, and an epoch as an iterable."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Generic, NoReturn, Self, TypeVar

from pagestream import _native
from pagestream._common.public import set_module
from pagestream._common.workers import NO_WORKERS
from pagestream.loading.handout import Handout

__all__ = ["Epoch"]

BatchT_co = TypeVar("BatchT_co", covariant=True)
# The sum of two such numbers fits into the 64 bits of a position.
_POSITIONS = 1 << 63


class Loops:
    """The consecutive parts of a stream that ``for`` loops read. Positions are samples over all ranks.

    Args:
        mixture: One or several sources of the stream. Its passes are the epochs.
        epochs: Number of epochs per loop; None for a single endless loop.
        global_rows: Number of windows in a full batch over all ranks.
        drop_last: Whether a short batch at the end of a loop is dropped.

    Raises:
        ValueError: The mixture has no epochs, or a loop has no batch or too many samples.
    """

    def __init__(
        self, mixture: _native.Mixture, epochs: int | None, global_rows: int, *, drop_last: bool
    ) -> None:
        self._mixture = mixture
        self._epochs = epochs
        self._global_rows = global_rows
        self._drop_last = drop_last
        if epochs is None:
            return
        samples = self._epoch_samples()
        if epochs * samples >= _POSITIONS:
            message = f"{epochs} epochs of {samples} windows are more than 2^63; use fewer epochs"
            raise ValueError(message)
        self._check_not_empty(epochs * samples, f"epochs={epochs}")

    def _epoch_samples(self) -> int:
        samples = self._mixture.pass_length
        if samples is None:
            message = (
                'a mixture with exhausted="repeat" has no epochs; pass epochs=None for an endless stream, or '
                'use exhausted="stop" or "drop"'
            )
            raise ValueError(message)
        return samples

    def _check_not_empty(self, samples: int, what: str) -> None:
        if self._batches(samples) == 0:
            message = (
                f"{what} has {samples} windows, but a global batch needs {self._global_rows}; use "
                "drop_last=False, a smaller batch_size, or more tokens"
            )
            raise ValueError(message)

    def _batches(self, samples: int) -> int:
        rows = self._global_rows
        return samples // rows if self._drop_last else -(-samples // rows)

    def __len__(self) -> int:
        """Returns the number of batches in a loop.

        Raises:
            TypeError: The stream is endless.
        """
        if self._epochs is None:
            message = (
                f"with epochs=None a loader is endless and has no length, but epoch() has one; {NO_WORKERS}"
            )
            raise TypeError(message)
        return self._batches(self._epochs * self._epoch_samples())

    def current_epoch(self, position: int) -> int | None:
        """Returns the epoch of the next sample, or None if sources repeat."""
        return None if self._mixture.pass_length is None else self._mixture.progress(position)[0]

    def end(self, position: int) -> int | None:
        """Returns the end of the loop that contains the next sample, or None if it has no end."""
        if self._epochs is None:
            return None
        over = self._mixture.progress(position)[0] // self._epochs
        return self._mixture.end_of_passes((over + 1) * self._epochs)

    def settled(self, position: int) -> int:
        """Returns the position of the next batch, or the end of a loop if the loop's rest is dropped."""
        end = self.end(position)
        return position if end is None or self._batches(end - position) else end

    def epoch(self, number: int, first: int) -> tuple[int, int, int]:
        """Returns the beginning and the end of an epoch, and the number of its batches.

        Args:
            number: The epoch.
            first: The first completely known epoch.

        Raises:
            ValueError: There is no such epoch, or it has no batch.
        """
        samples = self._epoch_samples()
        if number < first:
            message = f"epoch {number} began under other weights; the first in full is epoch {first}"
            raise ValueError(message)
        begin, end = (self._mixture.end_of_passes(passes) for passes in (number, number + 1))
        if begin is None or end is None or end >= _POSITIONS:
            message = f"epoch {number} of {samples} windows ends after 2^63 windows"
            raise ValueError(message)
        self._check_not_empty(samples, "an epoch")
        return begin, end, self._batches(samples)


class LoopBatches(Generic[BatchT_co]):
    """The iterator of one loop over a stream, or over one of its epochs.

    Args:
        handout: Hands out the batches of the stream, which is inside the loop.
        end: The end of the loop; None for an endless loop.
    """

    __slots__ = ("_end", "_handout", "_moves")

    def __init__(self, handout: Handout, end: int | None) -> None:
        self._handout = handout
        self._end = end
        self._moves = handout.moves

    def __iter__(self) -> Self:
        """Returns itself."""
        return self

    def __next__(self) -> BatchT_co:
        """Returns the next batch.

        Raises:
            StopIteration: The loop is over.
            RuntimeError: The loader was moved, so this loop would repeat or skip batches.
        """
        if self._handout.moves != self._moves:
            message = (
                "this loop cannot continue, because epoch() or load_state_dict() has moved its loader; "
                "create a loader of its own for validation, and load a state before the loop"
            )
            raise RuntimeError(message)
        return self._handout.next(self._end)  # type: ignore[no-any-return]


@set_module("pagestream")
class Epoch(Generic[BatchT_co]):
    """An epoch of a loader: its batches, and their number. `TokenLoader.epoch` creates it.

    Each ``for`` loop over it moves the loader to the beginning of the epoch. A loop over the same loader that
    has not ended raises ``RuntimeError`` for its next batch. To validate during an epoch, create another
    loader.

    Attributes:
        number: The epoch.

    Examples:
        >>> from pagestream import TokenLoader
        >>> options = dict(sequence_length=32, batch_size=4, order="sequential", drop_last=False)
        >>> with TokenLoader("tokens.bin", **options) as loader:
        ...     validation = loader.epoch(0)
        ...     len(validation), [sum(1 for batch in validation) for repeat in range(2)]
        (32, [32, 32])
    """

    def __init__(self, number: int, batches: int, begin: Callable[[int], Iterator[BatchT_co]]) -> None:
        self.number = number
        self._batches = batches
        self._begin = begin

    def __len__(self) -> int:
        """Returns the number of batches."""
        return self._batches

    def __iter__(self) -> Iterator[BatchT_co]:
        """Moves the loader to the beginning of the epoch, and returns the iterator over its batches."""
        return self._begin(self.number)

    def __getitem__(self, index: object) -> NoReturn:
        """Raises, because an epoch is not a dataset.

        Raises:
            TypeError: Always.
        """
        message = f"an Epoch has no items: {NO_WORKERS}"
        raise TypeError(message)

    def __repr__(self) -> str:
        """Shows epoch and length."""
        return f"<{type(self).__name__} {self.number}, {self._batches} batches>"

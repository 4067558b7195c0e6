"""Hands out batches, one thread at a time. An interrupted call neither loses nor repeats a batch."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol

from pagestream._common.locks import ForkSafeLock

if TYPE_CHECKING:
    from collections.abc import Callable

_CLOSED = "the loader is closed"
_IN_A_CALL = (
    "this thread is in the middle of next() or load_state_dict() of this loader: a signal handler can "
    "close() it, but not go on with it; set a flag, and do it once that call has returned"
)


class BatchSource(Protocol):
    """Batches in order: `HostBatches`, or batches on a device that are created from them."""

    def take(self, position: int) -> tuple[Any, int] | None:
        """Returns the next batch, and the position after it; None at the end."""

    def stop(self) -> None:
        """Stops reading ahead. The next `take` starts at the position that it is given."""

    def forget(self) -> None:
        """Drops batches that were taken but not handed out."""

    def limit(self, end: int | None) -> None:
        """Sets the end of the stream that the next `take` starts; None for an endless stream."""

    def interrupt(self) -> None:
        """Interrupts a thread that waits in `take`."""


class Handout:
    """The position of a stream, and the right to advance it.

    ```text
    lock ─ enter ─ take ─ count ─ leave ─ unlock ─ return
                     │      │       │       │
                     └──────┴───────┴───────┴─ an exception: the source stops, the count is undone
    ```

    Python raises KeyboardInterrupt after calls. A batch counts as handed out once `next` returns it. An
    exception before that undoes the count, and the next call starts with the same batch. So no call happens
    between the count and `return`, except for the release of the lock.
    """

    def __init__(self, source: BatchSource) -> None:
        self._source = source
        self._lock = ForkSafeLock()
        self.position = 0
        # The end of the source.
        self.end: int | None = None
        # Number of times that the stream was moved.
        self.moves = 0
        self.closed = False

    def next(self, end: int | None) -> Any:  # noqa: ANN401 - any kind of batch
        """Returns the next batch before the position `end`; None for an endless stream.

        Raises:
            StopIteration: The stream is at or beyond its end.
            ValueError: The loader is closed.
        """
        found, before, after = None, 0, None
        lock = self._lock
        try:
            with lock.lock:
                self._refuse()
                lock.taken = True
                try:
                    before = self.position
                    if end is None or before < end:
                        if end != self.end:
                            self._limit(end)
                        found = self._source.take(before)
                    if found is not None:
                        after = self.position = found[1]
                except BaseException:  # including an interrupt
                    self._source.stop()
                    raise
                finally:
                    lock.taken = False
                    self._end_if_closed()
        except BaseException:
            if after is not None:
                self._take_back(before, after)
            raise
        if found is None:
            raise StopIteration
        return found[0]

    def _take_back(self, before: int, after: int) -> None:
        """Takes back the count of a batch, unless another thread has already continued."""
        with self._lock.lock:
            if self.position == after:
                self.position = before
                self._source.stop()

    def _limit(self, end: int | None) -> None:
        """Moves the end of the source. After an interrupt in between, the next call repeats this."""
        self._source.stop()
        self._source.forget()
        self._source.limit(end)
        self.end = end

    def go_to(self, position: int, end: int | None, start: Callable[[int], object]) -> None:
        """Continues from a position, in samples, to an end; `start` starts reading there.

        Raises:
            ValueError: The loader is closed.
        """
        lock = self._lock
        with lock.lock:
            self._refuse()
            lock.taken = True
            try:
                self._limit(end)
                self.moves += 1
                self.position = position
                start(position)
            finally:
                lock.taken = False
                self._end_if_closed()

    def end_loops(self) -> None:
        """Makes the loops that have begun raise, as a move does, although the stream stays where it is."""
        with self._lock.lock:
            self.moves += 1

    def _refuse(self) -> None:
        """Raises in a signal handler that interrupts a call of its own thread, and after `close`."""
        if self._lock.taken:
            raise RuntimeError(_IN_A_CALL)
        if self.closed:
            raise ValueError(_CLOSED)

    def close(self) -> None:
        """Ends the stream. A signal handler that interrupts `next` may also call it."""
        self.closed = True
        self._source.interrupt()
        with self._lock.lock:
            # If it interrupts a call of this thread, that call cleans up when it leaves.
            if not self._lock.taken:
                self._end_if_closed()

    def _end_if_closed(self) -> None:
        if self.closed:
            self._source.stop()
            self._source.forget()

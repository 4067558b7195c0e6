"""Handing out a pipeline's batches: whose turn it is, what counts as handed out, and how it ends."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any

from pagestream._common.closing import ClosedByWith
from pagestream._common.locks import ForkSafeLock

if TYPE_CHECKING:
    from typing import Self

    from pagestream import _native

_log = logging.getLogger("pagestream.loader")

_CLOSED = "the loader is closed"
_IN_A_TURN = (
    "this thread is in the middle of next() or load_state_dict() of this loader: a signal handler can "
    "close() it, but not go on with it; set a flag, and do it once that call has returned"
)
# What `metrics` tells of the present, beside counters.
_PRESENT = ("depth_batches", "ring_batches", "threads", "buffers_allocated")


class BatchStream(ClosedByWith):
    """The part of a `TokenLoader` that does not know what a batch consists of."""

    def __init__(self) -> None:
        self._closed = False
        self._consumed = 0
        self._counted: dict[str, int] = {}
        # Threads that share a loader take turns.
        self._turns = ForkSafeLock()
        self._pipeline: _native.TokenPipeline | None = self._start()
        _log.info("started %r", self)

    def _start(self) -> _native.TokenPipeline:
        """A pipeline that begins at `_next_position`."""
        raise NotImplementedError

    def _next(self) -> tuple[Any, int] | None:
        """The next batch as it is handed out, and the position after it; None at the end."""
        raise NotImplementedError

    def _next_position(self) -> int:
        """Where reading goes on."""
        return self._consumed

    def _forget(self) -> None:
        """Drops batches that were taken and not handed out."""

    def _running(self) -> _native.TokenPipeline:
        if self._closed:
            raise ValueError(_CLOSED)
        pipeline = self._pipeline
        if pipeline is None or not pipeline.alive:
            # A fork has none of the threads: it starts its own, at the same place.
            self._pipeline = None
            self._retire(pipeline)
            pipeline = self._pipeline = self._start()
        return pipeline

    def _stop(self) -> None:
        pipeline, self._pipeline = self._pipeline, None
        self._retire(pipeline)

    def _retire(self, pipeline: _native.TokenPipeline | None) -> None:
        """Adds up what a pipeline has counted, and ends it."""
        if pipeline is None:
            return
        counted = dict(pipeline.metrics())
        for name, value in counted.items():
            if name not in _PRESENT:
                self._counted[name] = self._counted.get(name, 0) + value
        if pipeline.alive:
            pipeline.close()
            _log.debug("stopped after sample %d, with %s", self._consumed, counted)

    def __bool__(self) -> bool:
        """True: a loader without a length, or with the length 0, is a loader."""
        return True

    def __iter__(self) -> Self:
        """Itself: iteration goes on where it stopped."""
        return self

    def __next__(self) -> Any:  # noqa: ANN401 - a Batch, a PackedBatch or x alone
        """The next batch.

        Raises:
            StopIteration: The epochs are over.
            MappedReadError: A file was cut or its storage failed.
            FileChangedError: A file was rewritten or replaced since it was opened.
        """
        # Python hears an interrupt after a call. So none is made between counting the batch and `return`, but
        # for the release of the lock; after that the count is undone.
        found, before, is_counted = None, 0, False
        turns = self._turns
        try:
            with turns.lock:
                if turns.taken:
                    raise RuntimeError(_IN_A_TURN)  # noqa: TRY301 - nothing is to be undone
                turns.taken = True
                try:
                    before = self._consumed
                    found = self._next()
                    if found is not None:
                        self._consumed = found[1]
                        is_counted = True
                except BaseException:  # an interrupt as well
                    # The next call begins with this batch once more.
                    self._stop()
                    raise
                finally:
                    turns.taken = False
                    if self._closed:
                        self._stop()
                        self._forget()
        except BaseException:
            if found is not None and is_counted:
                self._take_back(before, found[1])
            raise
        if found is None:
            raise StopIteration
        return found[0]

    def _take_back(self, before: int, after: int) -> None:
        """Counts a batch as not handed out, unless another thread has gone on already."""
        with self._turns.lock:
            if self._consumed == after:
                pipeline, self._pipeline, self._consumed = self._pipeline, None, before
                self._retire(pipeline)
                self._stop()

    def _go_to(self, position: int) -> None:
        """Goes on from there, with a new pipeline."""
        turns = self._turns
        with turns.lock:
            if turns.taken:
                raise RuntimeError(_IN_A_TURN)
            turns.taken = True
            try:
                self._stop()
                self._forget()
                self._consumed = position
                self._running()
            finally:
                turns.taken = False
                if self._closed:
                    self._stop()
                    self._forget()

    def metrics(self) -> dict[str, float]:
        """What the loader did so far, and how deep it looks ahead now.

        In a fork of the process: what it had done by then, until the fork takes a batch of its own.

        Returns:
            Counters: ``windows``, ``batches``, ``bytes_asked``, ``bytes_read`` (whole pages fetched
            ahead; of files that are not mapped, what was read), ``lookahead_hits`` and
            ``lookahead_misses`` (windows gathered without and with a wait for storage),
            ``already_cached`` (ranges found in the cache), ``major_faults``,
            ``stalls``, ``stall_seconds`` (time that `next` waited for other threads). And of the present:
            ``depth_batches``, ``ring_batches``, ``threads``, ``buffers_allocated``.

        Example:
            >>> from pagestream import TokenLoader
            >>> with TokenLoader("tokens.bin", sequence_length=32, batch_size=4) as loader:
            ...     batch = next(loader)
            ...     loader.metrics()["windows"]
            4
        """
        pipeline = self._pipeline
        now = {} if pipeline is None else dict(pipeline.metrics())
        counted: dict[str, float] = dict.fromkeys(_PRESENT, 0)
        for name in (*self._counted, *now):
            counted[name] = now.get(name, 0) + self._counted.get(name, 0)
        counted["stall_seconds"] = counted.pop("stall_nanoseconds", 0) / 1e9
        return counted

    def close(self) -> None:
        """Stops the threads. Batches that are out stay valid, and so does the corpus.

        It may be called from a signal handler, also one that interrupts `next`, which raises ValueError then
        unless it has its batch already.

        Example:
            >>> from pagestream import TokenLoader
            >>> TokenLoader("tokens.bin", sequence_length=32, batch_size=4).close()
        """
        self._closed = True
        pipeline = self._pipeline
        if pipeline is not None and pipeline.alive:
            pipeline.close()  # also wakes those who wait for a batch
        with self._turns.lock:
            # Who is interrupted by this in a turn clears up at its end.
            if not self._turns.taken:
                self._stop()
                self._forget()

    def __getstate__(self) -> object:
        """Refuses: two loaders with one position would each give out half of the batches."""
        message = "a TokenLoader cannot be copied or pickled; make another and use state_dict()"
        raise TypeError(message)

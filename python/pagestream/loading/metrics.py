"""The work that a loader has done: `LoaderMetrics`."""

from __future__ import annotations

import dataclasses

from pagestream._common.public import set_module


@set_module("pagestream")
@dataclasses.dataclass(frozen=True, slots=True)
class LoaderMetrics:
    """Counters of a `TokenLoader` since its creation, and its current state. See `TokenLoader.metrics`.

    Attributes:
        windows: Windows handed out.
        batches: Batches handed out.
        bytes_asked: Bytes of tokens in the gathered windows.
        bytes_read: Bytes that the lookahead requested, in whole pages; for unmapped files, bytes that were
            read.
        lookahead_hits: Windows gathered without a wait for storage.
        lookahead_misses: Windows for which a thread waited for storage.
        already_cached: Ranges that the lookahead found in the page cache.
        major_faults: Page faults of the threads that had to wait for storage.
        stalls: Batches for which `next` waited.
        stall_seconds: Time that `next` waited for other threads.
        lookahead_batches: Current number of batches whose pages are requested ahead.
        ring_batches: Current number of batches that are gathered ahead.
        threads: Current number of threads.
        buffers_allocated: Batch buffers that the current threads have allocated.

    Examples:
        >>> from pagestream import TokenLoader
        >>> with TokenLoader("tokens.bin", sequence_length=32, batch_size=4) as loader:
        ...     batch = next(loader)
        ...     loader.metrics().windows
        4
    """

    windows: int = 0
    batches: int = 0
    bytes_asked: int = 0
    bytes_read: int = 0
    lookahead_hits: int = 0
    lookahead_misses: int = 0
    already_cached: int = 0
    major_faults: int = 0
    stalls: int = 0
    stall_seconds: float = 0.0
    lookahead_batches: int = 0
    ring_batches: int = 0
    threads: int = 0
    buffers_allocated: int = 0

    def as_dict(self) -> dict[str, int | float]:
        """Returns the names and the values, in the form that metric loggers accept.

        Examples:
            >>> from pagestream import TokenLoader
            >>> with TokenLoader("tokens.bin", sequence_length=32, batch_size=4) as loader:
            ...     loader.metrics().as_dict()["stall_seconds"]
            0.0
        """
        return dataclasses.asdict(self)

"""Batches in host memory: the native pipeline, its arrays, and its counters."""

from __future__ import annotations

import logging
from collections import Counter
from typing import TYPE_CHECKING, Any

import numpy as np

from pagestream import _native
from pagestream._common.workers import refuse_in_a_worker
from pagestream.loading.batches import Batch, PackedBatch, document_bounds
from pagestream.loading.metrics import LoaderMetrics
from pagestream.tokens.corpus import native_corpus

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pagestream.tokens.corpus import TokenCorpus

_log = logging.getLogger("pagestream.loader")

# The values of `metrics` that are not counters.
_PRESENT = ("lookahead_batches", "ring_batches", "threads", "buffers_allocated")


class HostBatches:
    """The batches of a stream, gathered by the threads of a native pipeline.

    A pipeline runs from the first `take` (or `start`) to `stop`. Threads do not survive a fork, so the next
    `take` in the child starts another pipeline.

    Args:
        corpora: The corpora of the stream.
        settings: All settings of a `_native.TokenPipeline` except the buffers.
        max_documents: Number of documents to which ``cu_seqlens`` is padded, or None.
        spare_buffers: Number of buffers that a consumer can hold and that still return to the pool.
    """

    def __init__(
        self,
        corpora: Sequence[TokenCorpus],
        settings: dict[str, Any],
        max_documents: int | None,
        spare_buffers: int = 8,
    ) -> None:
        self._corpora = corpora
        self._settings = {**settings, "spare_buffers": spare_buffers}
        self._sequence_length: int = settings["sequence_length"]
        self._max_documents = max_documents
        dtype = settings["dtype"]
        self._dtype = corpora[0].dtype if dtype == "raw" else np.dtype(dtype)
        self._position_dtype = np.dtype("int64" if dtype == "int64" else "int32")
        self._pipeline: _native.TokenPipeline | None = None
        self._counted: Counter[str] = Counter()
        # Buffers of the next pipeline may have the same addresses. This number distinguishes them.
        self.pipelines_started = 0

    def start(self, position: int) -> _native.TokenPipeline:
        """Returns the running pipeline, or starts one at a position, in samples.

        Raises:
            RuntimeError: The pipeline would start in a worker of a `DataLoader`.
        """
        pipeline = self._pipeline
        if pipeline is None or not pipeline.alive:
            refuse_in_a_worker()
            self.stop()
            self.pipelines_started += 1
            pipeline = self._pipeline = _native.TokenPipeline(
                [native_corpus(corpus) for corpus in self._corpora], self._settings, position
            )
        return pipeline

    def mix(self, mixture: _native.Mixture) -> None:
        """Sets the mixture of the next pipeline."""
        self._settings["mixture"] = mixture

    def limit(self, end: int | None) -> None:
        """Sets the end of the next pipeline, in samples; None for an endless pipeline."""
        self._settings["end"] = end

    def take(self, position: int) -> tuple[Any, int] | None:
        """Returns the next batch, and the position after it; None at the end.

        Args:
            position: The position at which to start if no pipeline runs.
        """
        pipeline = self.start(position)
        found = pipeline.next()
        if found is None:
            return None
        buffer, after, shape = found.buffer, found.position_after, (found.rows, self._sequence_length)
        x = np.ndarray(shape, self._dtype, buffer)
        y = None if pipeline.y_offset is None else np.ndarray(shape, self._dtype, buffer, pipeline.y_offset)
        if pipeline.positions_offset is None or pipeline.mask_offset is None or found.documents is None:
            return (x if y is None else Batch(x, y)), after
        ends, longest = document_bounds(found.documents, x.size, self._max_documents)
        position_ids = np.ndarray(shape, self._position_dtype, buffer, pipeline.positions_offset)
        loss_mask = np.ndarray(shape, np.bool_, buffer, pipeline.mask_offset)
        return PackedBatch(x, y, ends, longest, position_ids, loss_mask), after

    @property
    def buffer_bytes(self) -> int:
        """Size of the buffer that the arrays of a batch share, in bytes; 0 while no pipeline runs."""
        return 0 if self._pipeline is None else self._pipeline.buffer_bytes

    def stop(self) -> None:
        """Ends the pipeline. Its finished batches are dropped, and come again with the next `take`."""
        pipeline, self._pipeline = self._pipeline, None
        if pipeline is None:
            return
        counted = dict(pipeline.metrics())
        self._counted.update({name: value for name, value in counted.items() if name not in _PRESENT})
        if pipeline.alive:
            pipeline.close()
            _log.debug("stopped, with %s", counted)

    def forget(self) -> None:
        """Drops batches that were taken but not handed out. Here there are none."""

    def interrupt(self) -> None:
        """Ends the pipeline while a thread waits in `take`, which then raises ValueError."""
        pipeline = self._pipeline
        if pipeline is not None and pipeline.alive:
            pipeline.close()

    def metrics(self) -> LoaderMetrics:
        """Returns the total counters of all pipelines, and the other values of the running one."""
        counted = self._counted.copy()
        if self._pipeline is not None:
            counted.update(dict(self._pipeline.metrics()))
        stall_seconds = counted.pop("stall_nanoseconds", 0) / 1e9
        return LoaderMetrics(**counted, stall_seconds=stall_seconds)

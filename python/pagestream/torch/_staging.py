"""Sends batches to a device: pinned buffers and asynchronous copies. The device widens the tokens."""

from __future__ import annotations

import warnings
from collections import deque
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any, NamedTuple

import torch

from pagestream.devices.copy_device import finish_copies
from pagestream.loading.batches import Batch, PackedBatch

if TYPE_CHECKING:
    from collections.abc import Callable

    import numpy as np
    import numpy.typing as npt

    from pagestream import _native
    from pagestream.devices.copy_device import CopyDevice
    from pagestream.loading.host_batches import HostBatches
    from pagestream.loading.metrics import LoaderMetrics

    Array = npt.NDArray[Any]

# Number of batches in flight while the consumer works on another batch.
_IN_FLIGHT = 2
# Number of buffers whose copy may be unfinished. This limit, rather than memory, holds back a consumer that
# never waits for the device.
_IN_USE = 4
# Number of a pipeline's buffers outside its pool at a time. It must keep all of them, because they are
# pinned.
STAGED_BUFFERS = _IN_FLIGHT + _IN_USE + 1
# Types of files that the device can widen by itself, without loss. Unsigned types need a mask if PyTorch's
# kernels for them are incomplete.
_SIGNED = {"uint16": ("i2", 0xFFFF), "uint32": ("i4", 0xFFFF_FFFF)}
_WIDENED_ON_DEVICE = {
    "int64": {"uint8", "int8", "uint16", "int16", "uint32", "int32"},
    "int32": {"uint8", "int8", "uint16", "int16"},
}


def is_widened_on_device(file_dtype: np.dtype[Any], wanted: str) -> bool:
    """Returns whether tokens are copied to the device in the file's type, and converted to `wanted` there."""
    return file_dtype.name in _WIDENED_ON_DEVICE.get(wanted, ())


class _Sent(NamedTuple):
    batch: Any
    position: int
    done: Any
    host: Any


class StagedBatches:
    """The batches of a `HostBatches`, copied to a device ahead of the consumer.

    ```text
    host ── send ──> in flight ── the next take ──> being read ── event done ──> back to the pool
                         └── first: handed out, the consumer's stream waits for the event
    ```

    A host buffer stays out of its pool until an event shows that its copy is done. Each buffer is pinned
    once. All registrations end before the pipeline that owns the buffers does.

    Args:
        host: The source of the batches.
        device: The device that receives the batches.
        wanted: The type of the tokens on the device; None for their type in the buffers.
    """

    def __init__(self, host: HostBatches, device: CopyDevice, wanted: torch.dtype | None) -> None:
        self._host = host
        self._device = device
        self._wanted = wanted
        self._flight: deque[_Sent] = deque()
        # Events, each with the buffer that may be read until the event is done.
        self._reading: deque[tuple[Any, Any]] = deque()
        # Addresses of pinned buffers, each with the number of its pipeline: another pipeline may get the same
        # addresses for other pages.
        self._pinned: dict[int, int] = {}
        self._can_pin = device.is_cuda
        # A batch whose copies may be only partly queued.
        self._sending: Any = None

    def start(self, position: int) -> Any:  # noqa: ANN401 - the native pipeline
        """Starts to read at a position."""
        return self._host.start(position)

    def mix(self, mixture: _native.Mixture) -> None:
        """Sets the mixture to read after the host's next start."""
        self._host.mix(mixture)

    def limit(self, end: int | None) -> None:
        """Sets the end of the stream for the host's next start."""
        self._host.limit(end)

    def take(self, position: int) -> tuple[Any, int] | None:
        """Returns the next batch on the device, and the position after it; None at the end.

        The batch stays in flight until the position of a later call shows that the consumer received it.
        """
        self._drop_until(position)
        while len(self._flight) < _IN_FLIGHT:
            after = self._flight[-1].position if self._flight else position
            # Return a batch in flight now, instead of waiting until the next one is gathered.
            if self._flight and not self._host.start(after).is_ready:
                break
            try:
                found = self._host.take(after)
            except Exception:
                if not self._flight:
                    raise
                # Batches in flight come first. Then the error is raised.
                self.stop()
                break
            if found is None:
                break
            self._send(*found)
        if not self._flight:
            return None
        batch, position, done, _ = self._flight[0]
        parts = batch if isinstance(batch, tuple) else (batch,)
        self._device.hand_over(tuple(part for part in parts if isinstance(part, torch.Tensor)), done)
        return batch, position

    def _drop_until(self, position: int) -> None:
        """Forgets batches that the consumer has received, and releases buffers that are no longer read."""
        while self._flight and self._flight[0].position <= position:
            # In this order: an interrupt in between leaves the buffer in both queues, not in neither.
            self._reading.append((self._flight[0].done, self._flight[0].host))
            self._flight.popleft()
        while self._reading and (len(self._reading) > _IN_USE or self._reading[0][0].query()):
            # Keep a reference to the buffer while waiting for its copy.
            self._reading[0][0].synchronize()
            self._reading.popleft()

    def _send(self, host: Any, position: int) -> None:  # noqa: ANN401 - a batch of arrays
        """Queues the copy of a batch. If that fails, `stop` waits for the queued copies."""
        self._pin(host[0] if isinstance(host, tuple) else host)
        self._sending = host
        with self._device.stream():
            batch = converted(host, self._widened, self._device.copy)
            self._flight.append(_Sent(batch, position, self._device.record(), host))
        self._sending = None

    def _widened(self, array: Array) -> torch.Tensor:
        if self._wanted is None:
            return self._device.copy(array)
        signed, mask = _SIGNED.get(array.dtype.name, (None, 0))
        if signed is None:
            return self._device.copy(array).to(self._wanted)
        return self._device.copy(array.view(signed)).to(self._wanted).bitwise_and_(mask)

    def _pin(self, array: Array) -> None:
        """Page-locks the buffer at the start of an array, once, because a pipeline reuses its buffers."""
        address, pipeline = array.__array_interface__["data"][0], self._host.pipelines_started
        if not self._can_pin or self._pinned.get(address) == pipeline:
            return
        if address in self._pinned:
            self._unpin(address)
        nbytes = self._host.buffer_bytes
        # Recorded first: an interrupt in between leaves an extra address, but no unrecorded registration.
        self._pinned[address] = pipeline
        failed = self._device.register(address, nbytes)
        if failed:
            del self._pinned[address]
            # Containers limit locked memory. Copies from pageable memory are correct, but slower.
            self._can_pin = False
            message = (
                f"{nbytes} bytes cannot be page-locked (CUDA error {failed}): copies wait for each other"
            )
            warnings.warn(message, RuntimeWarning, stacklevel=6)

    def _unpin(self, address: int) -> None:
        try:
            self._device.unregister(address)
        finally:
            del self._pinned[address]

    def stop(self) -> None:
        """Stops reading ahead, once no buffer is being read. Batches in flight stay."""
        try:
            interrupt = finish_copies(self._device)
            self._unpin_all()
            self._reading.clear()
            self._sending = None
            self._flight = deque(sent._replace(host=None) for sent in self._flight)
        finally:
            self._host.stop()
        if interrupt is not None:
            raise interrupt

    def _unpin_all(self) -> None:
        """Ends all registrations, even if one fails. The last failure is raised."""
        with ExitStack() as stack:
            for address in self._pinned:
                stack.callback(self._unpin, address)

    def forget(self) -> None:
        """Drops the batches in flight. Call it after `stop`."""
        self._flight.clear()

    def interrupt(self) -> None:
        """Interrupts a thread that waits in `take`."""
        self._host.interrupt()

    def metrics(self) -> LoaderMetrics:
        """Returns the host's counters."""
        return self._host.metrics()


def converted(
    batch: Any,  # noqa: ANN401 - any kind of batch, as is the result
    convert: Callable[[Array], torch.Tensor],
    keep: Callable[[Array], torch.Tensor],
) -> Any:  # noqa: ANN401
    """Returns the batch with its arrays converted; ``cu_seqlens`` and ``loss_mask`` keep their types."""
    if isinstance(batch, PackedBatch):
        x, y, bounds, longest, positions, mask = batch
        y = None if y is None else convert(y)
        return PackedBatch(convert(x), y, keep(bounds), longest, convert(positions), keep(mask))
    if isinstance(batch, Batch):
        return Batch(convert(batch.x), convert(batch.y))
    return convert(batch)

"""Batches on their way to a device: pinned buffers, a stream of their own, widened when they are there."""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, Any, NamedTuple

import torch

from pagestream.batches import Batch, PackedBatch

if TYPE_CHECKING:
    from collections.abc import Callable

    import numpy as np
    import numpy.typing as npt

    Array = npt.NDArray[Any]

# Batches that are on their way while the consumer works on another.
_IN_FLIGHT = 2
# Buffers whose copy may not be done yet. A consumer that never waits for the device is held back here, and
# not by memory.
_IN_USE = 4
# Files' types that the device can widen by itself: without loss, and by a mask where they are unsigned and
# PyTorch's kernels for unsigned types are incomplete.
_SIGNED = {"uint16": ("i2", 0xFFFF), "uint32": ("i4", 0xFFFF_FFFF)}
_WIDENED_ON_DEVICE = {
    "int64": {"uint8", "int8", "uint16", "int16", "uint32", "int32"},
    "int32": {"uint8", "int8", "uint16", "int16"},
}


def is_widened_on_device(file_dtype: np.dtype[Any], wanted: str) -> bool:
    """Whether tokens cross to the device as they are in the file, and become `wanted` there."""
    return file_dtype.name in _WIDENED_ON_DEVICE.get(wanted, ())


class _Sent(NamedTuple):
    batch: Any
    position: int
    done: Any
    host: Any


class Staging:
    """A queue of batches that are being copied to a device.

    A host buffer is kept from its pool until an event says that its copy is done.

    Args:
        device: Where to; ``"cpu"`` goes through the same motions.

    Raises:
        ValueError: PyTorch has no streams for such a device.
    """

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._module: Any = getattr(torch, device.type, None)
        if not hasattr(self._module, "Stream"):
            message = (
                f'device is "{device}", to which nothing can be copied on a stream of its own; use "cpu"'
            )
            raise ValueError(message)
        self._stream: Any = self._module.Stream(*([device] if device.type != "cpu" else []))
        self._flight: deque[_Sent] = deque()
        # Events and what keeps buffers that may still be read.
        self._read: deque[tuple[Any, Any]] = deque()
        self._pinned: set[int] = set()

    def __len__(self) -> int:
        """Batches that are on their way."""
        return len(self._flight)

    @property
    def is_full(self) -> bool:
        """Whether enough batches are on their way."""
        return len(self._flight) >= _IN_FLIGHT

    @property
    def last_position(self) -> int:
        """Of the batch that was sent last; there must be one."""
        return self._flight[-1].position

    def pin(self, array: Array, nbytes: int) -> None:
        """Page-locks the buffer that an array begins, once: loaders use their buffers again."""
        address = array.__array_interface__["data"][0]
        if self._device.type == "cuda" and address not in self._pinned:
            _cudart_call("cudaHostRegister", address, nbytes, 0)
            self._pinned.add(address)

    def send(self, host: Any, position: int, wanted: torch.dtype | None) -> None:  # noqa: ANN401 - a batch of arrays
        """Starts the copy of a batch, whose tokens become `wanted` on the device."""

        def widened(array: Array) -> torch.Tensor:
            if wanted is None:
                return self._copied(array)
            signed, mask = _SIGNED.get(array.dtype.name, (None, 0))
            if signed is None:
                return self._copied(array).to(wanted)
            return self._copied(array.view(signed)).to(wanted).bitwise_and_(mask)

        with self._module.stream(self._stream):
            batch = converted(host, widened, self._copied)
            done = self._module.Event()
            done.record(self._stream)
        self._flight.append(_Sent(batch, position, done, host))

    def take(self) -> tuple[Any, int]:
        """The batch that was sent first, for the consumer's stream, and the position after it."""
        batch, position, done, host = self._flight.popleft()
        current = self._module.current_stream(self._device)
        current.wait_event(done)
        if self._device.type != "cpu":
            for tensor in batch if isinstance(batch, tuple) else (batch,):
                if isinstance(tensor, torch.Tensor):
                    tensor.record_stream(current)
        self._read.append((done, host))
        while self._read and (len(self._read) > _IN_USE or self._read[0][0].query()):
            self._read.popleft()[0].synchronize()
        return batch, position

    def release(self) -> None:
        """Waits until no buffer is read any more, and unpins them. Batches on their way stay."""
        for done, _ in (*((sent.done, None) for sent in self._flight), *self._read):
            done.synchronize()
        self._read.clear()
        self._flight = deque(sent._replace(host=None) for sent in self._flight)
        for address in self._pinned:
            _cudart_call("cudaHostUnregister", address)
        self._pinned.clear()

    def forget(self) -> None:
        """Drops the batches that are on their way, after `release`."""
        self._flight.clear()

    def _copied(self, array: Array) -> torch.Tensor:
        return torch.from_numpy(array).to(self._device, non_blocking=True, copy=True)


def converted(
    batch: Any,  # noqa: ANN401 - any of the kinds of batch, as is what is returned
    convert: Callable[[Array], torch.Tensor],
    convert_bounds: Callable[[Array], torch.Tensor],
) -> Any:  # noqa: ANN401
    """The batch with its arrays converted; ``cu_seqlens`` stays int32."""
    if isinstance(batch, PackedBatch):
        x, y, bounds, longest, positions = batch
        y = None if y is None else convert(y)
        return PackedBatch(convert(x), y, convert_bounds(bounds), longest, convert(positions))
    if isinstance(batch, Batch):
        return Batch(convert(batch.x), convert(batch.y))
    return convert(batch)


def _cudart_call(name: str, *arguments: int) -> None:
    runtime: Any = torch.cuda.cudart()  # type: ignore[no-untyped-call]
    torch.cuda.check_error(getattr(runtime, name)(*arguments))

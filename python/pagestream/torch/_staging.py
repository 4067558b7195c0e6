"""Batches on their way to a device: pinned buffers, a stream of their own, widened when they are there."""

from __future__ import annotations

import contextlib
import warnings
from collections import deque
from typing import TYPE_CHECKING, Any, NamedTuple

import torch

from pagestream.loading.batches import Batch, PackedBatch

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
        ValueError: There is no such device, or nothing can be pinned for it.
    """

    def __init__(self, device: torch.device) -> None:
        self._device = device
        if device.type not in ("cpu", "cuda") or (device.index or 0) >= _count(device):
            message = f'device is "{device}"; it must be "cpu", or "cuda" where PyTorch finds such a GPU'
            raise ValueError(message)
        self._module: Any = torch.get_device_module(device)
        self._stream: Any = self._module.Stream(*([device] if device.type != "cpu" else []))
        self._flight: deque[_Sent] = deque()
        # Events and what keeps buffers that may still be read.
        self._read: deque[tuple[Any, Any]] = deque()
        self._pinned: set[int] = set()
        self._can_pin = True

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
        if self._device.type != "cuda" or address in self._pinned or not self._can_pin:
            return
        with torch.cuda.device(self._device):
            failed = int(torch.cuda.cudart().cudaHostRegister(address, nbytes, 0))  # type: ignore[no-untyped-call]
            if not failed:
                self._pinned.add(address)
                return
            # Containers limit locked memory. Copies from pageable memory are right, and slower.
            self._can_pin = False
            message = (
                f"{nbytes} bytes cannot be page-locked (CUDA error {failed}): copies wait for each other"
            )
            warnings.warn(message, RuntimeWarning, stacklevel=4)
            # The next kernel's check would report the error as its own.
            with contextlib.suppress(RuntimeError):
                torch.zeros(1, device=self._device)

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

    def first(self) -> tuple[Any, int]:
        """The batch that was sent first, for the consumer's stream, and the position after it."""
        batch, position, done, _ = self._flight[0]
        current = self._module.current_stream(self._device)
        current.wait_event(done)
        if self._device.type != "cpu":
            for tensor in batch if isinstance(batch, tuple) else (batch,):
                if isinstance(tensor, torch.Tensor):
                    tensor.record_stream(current)
        return batch, position

    def drop_until(self, position: int) -> None:
        """Forgets batches that were handed out, and lets go of buffers that have been read."""
        while self._flight and self._flight[0].position <= position:
            sent = self._flight.popleft()
            self._read.append((sent.done, sent.host))
        while self._read and (len(self._read) > _IN_USE or self._read[0][0].query()):
            self._read.popleft()[0].synchronize()

    def release(self) -> None:
        """Waits until no buffer is read any more, and unpins them. Batches on their way stay."""
        for done, _ in (*((sent.done, None) for sent in self._flight), *self._read):
            done.synchronize()
        self._read.clear()
        self._flight = deque(sent._replace(host=None) for sent in self._flight)
        for address in self._pinned:
            with torch.cuda.device(self._device):
                torch.cuda.check_error(torch.cuda.cudart().cudaHostUnregister(address))  # type: ignore[no-untyped-call]
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


def _count(device: torch.device) -> int:
    return torch.cuda.device_count() if device.type == "cuda" else 1
